//! Images in messages: data URLs, told by the hash of their bytes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::base64::Base64Form;
use super::json::{Raw, Text};

/// The SHA-256 of an image's bytes, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageHash([u8; 32]);

impl ImageHash {
    /// The hash of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Takes a hash's own bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The hash's own bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for ImageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ImageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is no image's hash.
#[derive(Debug, thiserror::Error)]
#[error("an image's hash is 64 hexadecimal digits")]
pub struct NoHash;

impl FromStr for ImageHash {
    type Err = NoHash;

    fn from_str(text: &str) -> Result<Self, NoHash> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(NoHash);
        }
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| NoHash)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for ImageHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ImageHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// An image that a message brings with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub hash: ImageHash,
    /// As whoever sent it said.
    pub mime: String,
    /// How many bytes it has.
    pub bytes: u64,
}

impl Image {
    /// The image in a data URL; `None` for a link, and for what can't be read.
    #[must_use]
    pub fn of_url(url: &str) -> Option<Self> {
        let (head, data) = url.strip_prefix("data:")?.split_once(',')?;
        let mime = head.strip_suffix(";base64")?.split(';').next().unwrap_or_default();
        let (_, bytes) = Base64Form::read(data.as_bytes())?;
        let mime = if mime.is_empty() { "application/octet-stream" } else { mime }.to_owned();
        Some(Self { hash: ImageHash::of(&bytes), mime, bytes: bytes.len() as u64 })
    }

    /// The images of messages in chat completions' form, in the order in which they stand.
    #[must_use]
    pub fn of_messages(messages: &[Raw]) -> Vec<Self> {
        let parts = messages.iter().filter(|message| may_name_image(message)).filter_map(|message| {
            #[derive(Deserialize)]
            struct Message {
                content: Vec<Raw>,
            }
            message.read::<Message>().ok()
        });
        let urls = parts.flat_map(|message| message.content).filter_map(|part| Self::url_of_part(&part));
        urls.filter_map(|url| Self::of_url(&url.decode())).collect()
    }

    /// The URL of the image that a part in chat completions' form is.
    #[must_use]
    pub fn url_of_part(part: &Raw) -> Option<Text> {
        #[derive(Deserialize)]
        struct Part {
            r#type: String,
            image_url: Raw,
        }
        #[derive(Deserialize)]
        struct Url {
            url: Raw,
        }
        let part = may_name_image(part).then(|| part.read::<Part>().ok()).flatten().filter(|part| part.r#type == "image_url")?;
        part.image_url.as_text().or_else(|| part.image_url.read::<Url>().ok()?.url.as_text())
    }
}

fn may_name_image(json: &Raw) -> bool {
    memchr::memmem::find(json.as_bytes(), b"image_url").is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_hash_is_read_as_it_is_written() {
        let hash = ImageHash::of(b"abc");
        assert_eq!(hash.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(hash.to_string().parse::<ImageHash>().ok(), Some(hash));
        assert_eq!(serde_json::from_value::<ImageHash>(json!(hash)).unwrap(), hash);
        for wrong in ["", "ba78", &"x".repeat(64), &"é".repeat(32), &format!("{hash}00")] {
            assert!(wrong.parse::<ImageHash>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn data_urls_are_images_and_links_are_not() {
        let image = |mime: &str, bytes: &[u8]| {
            Some(Image { hash: ImageHash::of(bytes), mime: mime.to_owned(), bytes: bytes.len() as u64 })
        };
        assert_eq!(Image::of_url("data:image/png;base64,YWJj"), image("image/png", b"abc"));
        assert_eq!(Image::of_url("data:image/png;charset=x;base64,YWI"), image("image/png", b"ab"));
        assert_eq!(Image::of_url("data:;base64,"), image("application/octet-stream", b""));
        for other in ["https://a/b.png", "data:image/svg+xml,%3Csvg", "data:image/png;base64,???", "data:", "YWJj"] {
            assert_eq!(Image::of_url(other), None, "{other}");
        }
    }

    #[test]
    fn images_of_messages_stand_in_their_order() {
        let part = |url: &str| json!({"type": "image_url", "image_url": {"url": url, "detail": "high"}});
        let messages = [
            json!({"role": "user", "content": "image_url"}),
            json!({"role": "user", "content": [part("data:a/b;base64,YQ=="), {"type": "text", "text": "image_url"}, part("http://x")]}),
            json!({"role": "tool", "content": [{"type": "image_url", "image_url": "data:c/d;base64,YWI="}]}),
        ];
        let messages: Vec<Raw> = messages.iter().map(Raw::from_value).collect();
        let found: Vec<_> = Image::of_messages(&messages).into_iter().map(|image| (image.mime, image.bytes)).collect();
        assert_eq!(found, [("a/b".to_owned(), 1), ("c/d".to_owned(), 2)]);
    }
}
