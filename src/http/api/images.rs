//! Images of requests.

use std::sync::Arc;

use axum::extract::State;
use bytes::Bytes;
use http::{HeaderName, header};

use super::extract::Id;
use super::known;
use crate::call::ImageHash;
use crate::http::problem::{Problem, ProblemDocument};
use crate::proxy::App;

/// The bytes of an image that came as data in a request.
#[utoipa::path(
    get, path = "/images/{hash}", tag = "calls",
    params(("hash" = String, Path, description = "SHA-256 of its bytes, as calls and samples name it")),
    responses(
        (status = 200, description = "The bytes; of an image's type if they begin as one", content_type = "application/octet-stream"),
        (status = 404, description = "There is no such image", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    Id(hash): Id<ImageHash>,
) -> Result<([(HeaderName, &'static str); 3], Bytes), Problem> {
    let bytes = known(app.store.image(hash).await?, "image", hash)?;
    let headers = [
        (header::CONTENT_TYPE, media(&bytes)),
        // What a harness sent is never a page of ours.
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "private, max-age=31536000, immutable"),
    ];
    Ok((headers, bytes))
}

/// What bytes are by how they begin: what the client said of them is no matter here.
fn media(bytes: &[u8]) -> &'static str {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => "image/png",
        [0xff, 0xd8, 0xff, ..] => "image/jpeg",
        [b'G', b'I', b'F', b'8', ..] => "image/gif",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "image/webp",
        [_, _, _, _, b'f', b't', b'y', b'p', b'a', b'v', b'i', b'f', ..] => "image/avif",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::media;

    #[test]
    fn only_what_begins_as_an_image_is_one() {
        for (bytes, expected) in [
            (b"\x89PNG\r\n" as &[u8], "image/png"),
            (b"\xff\xd8\xff\xe0", "image/jpeg"),
            (b"GIF89a", "image/gif"),
            (b"RIFF....WEBPVP8 ", "image/webp"),
            (b"....ftypavif", "image/avif"),
            (b"<svg onload=alert(1)>", "application/octet-stream"),
            (b"", "application/octet-stream"),
        ] {
            assert_eq!(media(bytes), expected);
        }
    }
}
