//! The API's OpenAPI page, made from the handlers and their types.

use axum::Json;
use utoipa::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{InfoBuilder, OpenApi as Document, SecurityRequirement, Server};

use super::{artifacts, batches, calls, ending, images, policies, rollouts, samples};

#[derive(OpenApi)]
#[openapi(paths(
    rollouts::create,
    rollouts::list,
    rollouts::get,
    ending::reward,
    ending::finish,
    calls::list,
    samples::get,
    artifacts::list,
    artifacts::get,
    batches::create,
    batches::list,
    batches::get,
    batches::rollouts,
    batches::cancel,
    batches::resume,
    calls::get,
    calls::request,
    calls::upstream,
    calls::response,
    calls::prompt,
    images::get,
    policies::list,
    policies::change
))]
struct Api;

/// Serves the page.
pub(super) async fn document() -> Json<Document> {
    Json(page())
}

fn page() -> Document {
    let mut page = Api::openapi();
    page.info = InfoBuilder::new()
        .title("Gleaner")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Rollouts, their calls and their samples, and batches of rollouts. Errors are RFC 9457 problem documents; any call may also answer 401 \
             (no admin key), 403 (a caller that the API is not for) and 500 as such.",
        ))
        .build();
    page.servers = Some(vec![Server::new("/api/v1")]);
    // The key is needed only where the server was given one, so an empty requirement stands beside it.
    page.security = Some(vec![SecurityRequirement::new("admin", [] as [&str; 0]), SecurityRequirement::default()]);
    let mut key = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
    key = key.description(Some("The server's GLEANER_ADMIN_KEY."));
    page.components.get_or_insert_default().add_security_scheme("admin", SecurityScheme::Http(key.build()));
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn the_page_has_every_route_and_no_other() {
        let page = page();
        let described: BTreeSet<&str> = page.paths.paths.keys().map(String::as_str).collect();
        let served: BTreeSet<&str> =
            super::super::table::<std::sync::Arc<crate::proxy::App>>().into_iter().map(|(path, _)| path).collect();
        // OpenAPI knows no parameter that takes the rest of a path.
        let served: BTreeSet<String> = served.into_iter().map(|path| path.replace("{*", "{")).collect();
        assert_eq!(described, served.iter().map(String::as_str).collect());
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let page = serde_json::to_value(page()).unwrap();
        let mut queue = vec![&page];
        let mut seen = 0;
        while let Some(value) = queue.pop() {
            match value {
                Value::Object(fields) => {
                    if let Some(Value::String(target)) = fields.get("$ref") {
                        let pointer = target.strip_prefix('#').unwrap();
                        assert!(page.pointer(pointer).is_some(), "{target} leads nowhere");
                        seen += 1;
                    }
                    queue.extend(fields.values());
                }
                Value::Array(items) => queue.extend(items),
                _ => {}
            }
        }
        assert!(seen > 20, "{seen}");
    }

    #[test]
    fn every_call_tells_its_errors() {
        let page = serde_json::to_value(page()).unwrap();
        for (path, methods) in page["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let responses = operation["responses"].as_object().unwrap();
                let problems = responses.iter().filter(|(status, _)| status.starts_with('4'));
                let media: Vec<_> = problems.map(|(_, r)| r["content"].as_object().unwrap().keys().next().unwrap()).collect();
                assert!(path == "/policies" || !media.is_empty(), "{method} {path} tells no error");
                assert!(media.iter().all(|media| *media == "application/problem+json"), "{method} {path}: {media:?}");
            }
        }
    }
}
