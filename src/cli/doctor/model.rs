//! The policies: whether they answer, and how exactly their tokens would be known.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::call::{Call, Capture, CaptureLevel, Fold, Message, Role, Sampling, Text};
use crate::cli::assemble;
use crate::config::Config;
use crate::engine::Finding;
use crate::policy::{Policy, PolicyConfig, TokenMode, Transcript};

/// How long a server may take for one token.
const PATIENCE: Duration = Duration::from_mins(1);

/// Each policy of the config.
pub(super) async fn look(config: &Config) -> Vec<Finding> {
    if config.policies.is_empty() {
        let advice = "name the model server: --policy URL, or [policies.default] in a config file";
        return vec![Finding::warning("policy", "none is named", advice)];
    }
    let each = config.policies.iter().map(|(name, settings)| one(name, settings));
    futures::future::join_all(each).await
}

async fn one(name: &str, settings: &PolicyConfig) -> Finding {
    let title = format!("policy {name}");
    // What waits for a server that is down would only say so later.
    let settings = PolicyConfig { retry_s: 0, ..settings.clone() };
    let policy = match assemble::connect(name, &settings) {
        Ok(policy) => policy,
        Err(error) => return Finding::fault(&title, format!("{error:#}"), "mend the config"),
    };
    let asked = timeout(PATIENCE, async {
        policy.ready().await.map_err(|failure| failure.to_string())?;
        ask(policy.as_ref()).await
    });
    let advice = "start the model server, or mend its address (--policy, [policies])";
    match asked.await {
        Err(_) => Finding::fault(&title, format!("{}: no token within {PATIENCE:?}", policy.describe()), advice),
        Ok(Err(why)) => Finding::fault(&title, why, advice),
        Ok(Ok(capture)) => judged(&title, &policy.describe(), settings.tokens, &capture),
    }
}

fn judged(title: &str, described: &str, tokens: TokenMode, capture: &Capture) -> Finding {
    let seen = format!("{described}; capture level {}", capture.level.name());
    if capture.level == CaptureLevel::Full {
        return Finding::ok(title, seen);
    }
    let why = capture.reason.as_deref().unwrap_or("the server does not say why");
    let advice = match tokens {
        TokenMode::Off => "its calls can be exported as messages only: tokens = \"off\" in the config says so",
        _ => "its calls can't be trained by tokens; use vLLM, SGLang or llama.cpp, or tokens = \"exact\"",
    };
    Finding::warning(title, format!("{seen}: {why}"), advice)
}

/// Asks for one token, as a harness's call would.
async fn ask(policy: &dyn Policy) -> Result<Capture, String> {
    let hello = Message::text(Role::User, Text::new("Hello"));
    let call = Arc::new(Call { messages: vec![hello], max_tokens: Some(1), ..Call::new("chat") });
    let prepared = policy
        .prepare(&call, &Sampling::default(), &Transcript::default(), Duration::ZERO)
        .await
        .map_err(|failure| failure.to_string())?;
    let mut answer = policy.send(&prepared).await.map_err(|no_answer| no_answer.failure.to_string())?;
    let (mut fold, mut events) = (Fold::default(), Vec::new());
    while answer.next(&mut events).await.map_err(|failure| failure.to_string())?.is_some() {
        events.drain(..).for_each(|event| fold.push(&event));
    }
    events.drain(..).for_each(|event| fold.push(&event));
    Ok(answer.capture(&fold.reply()).await.capture)
}
