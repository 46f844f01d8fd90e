//! Which images a policy is sent: those that came as data always, links if the config lets them; nothing else has a meaning there.

use super::config::ImageUrls;
use crate::call::{Call, Content, Failure};

/// Checks the images of a call. What is neither data nor an address is the server's to judge.
///
/// # Errors
/// If one is an address that is not to be followed: a 400 that names its part.
pub(super) fn check(call: &Call, links: ImageUrls, policy: &str) -> Result<(), Failure> {
    for (at, message) in call.messages.iter().enumerate() {
        let Content::Parts(parts) = &message.content else { continue };
        for (part, url) in parts.iter().enumerate().filter_map(|(part, image)| Some((part, image.image_url()?))) {
            // Data may be large, and an address's beginning is all that is looked at.
            let start = &url.inner()[..url.inner().len().min(32)];
            let Some(scheme) = scheme(start) else { continue };
            let reason = match scheme.as_str() {
                "data" => continue,
                "http" | "https" if links == ImageUrls::Pass => continue,
                "http" | "https" => {
                    format!(
                        "is a link, which policy {policy} does not follow ([policies.{policy}] image_urls); send the image as a data URL"
                    )
                }
                other => format!("is an address of scheme {other}, which is not served; send the image as a data URL"),
            };
            let param = format!("messages[{at}].content[{part}].image_url");
            return Err(Failure::invalid(&param, format!("{param} {reason}")));
        }
    }
    Ok(())
}

/// What stands before an address's colon, in small letters.
fn scheme(start: &[u8]) -> Option<String> {
    let scheme = std::str::from_utf8(&start[..memchr::memchr(b':', start)?]).ok()?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    is_scheme.then(|| scheme.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::call::{Message, Part, Raw, Role, Text};
    use crate::policy::stub::call;

    fn checked(part: Part, links: ImageUrls) -> Option<(u16, String)> {
        let text = Message::text(Role::User, Text::new("http://a"));
        let image =
            Message { content: Content::Parts(vec![Part::Text(Text::new("file:///a")), part]), ..Message::new(Role::User) };
        let failure = check(&Call { messages: vec![text, image], ..call() }, links, "p").err()?;
        Some((failure.status, failure.param?))
    }

    #[test]
    fn links_are_passed_or_refused_and_other_addresses_always_refused() {
        let refused = Some((400, "messages[1].content[1].image_url".to_owned()));
        for (url, passed, strict) in [
            ("data:image/png;base64,YWJj", true, true),
            ("DATA:image/png;base64,???", true, true),
            ("https://a.example/b.png", true, false),
            ("HTTP://a.example/b.png", true, false),
            ("file:///etc/passwd", false, false),
            ("gs://bucket/a", false, false),
            ("iVBORw0KGgo", true, true),
            ("", true, true),
            ("a b:c", true, true),
        ] {
            let detailed = json!({"type": "image_url", "image_url": {"url": url, "detail": "high"}});
            for part in [Part::Image(Text::new(url)), Part::Opaque(Raw::from_value(&detailed))] {
                assert_eq!(checked(part.clone(), ImageUrls::Pass), refused.clone().filter(|_| !passed), "{url}");
                assert_eq!(checked(part, ImageUrls::Refuse), refused.clone().filter(|_| !strict), "{url}");
            }
        }
    }
}
