//! `[check]` of a harness.toml: how a harness is told to use its shell and to end, and what it is known to rewrite.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::catalog::Harness;
use super::spec::{Spec, SpecError};
use super::template::{Launch, Variables};
use crate::policy::{COMMAND, Ending, Script};

/// How `gleaner harness check` speaks to a harness. What is not said is found out from the tools that the harness offers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckSpec {
    /// The name of its shell tool.
    pub tool: Option<String>,
    /// The argument of that tool which takes the command.
    pub argument: Option<String>,
    /// Values for other arguments; what the tool's schema requires beside these is filled in by its type.
    pub arguments: BTreeMap<String, Value>,
    /// A turn that runs a command where the harness takes no tool calls: a text in which `{command}` stands for it.
    pub fenced: Option<String>,
    /// How it is told that the task is done, `{ text = ".." }` or `{ command = ".." }`; by a text of ours if missing.
    pub ending: Option<Ending>,
    /// Samples that one conversation becomes; one if missing.
    pub samples: Option<usize>,
    /// What of its history it rewrites, where those are more than one: words that are in what `gleaner show` says of the branch.
    pub because: Option<String>,
}

impl CheckSpec {
    /// These settings, with those of `change` in their place wherever it has one.
    #[must_use]
    pub(super) fn changed_by(mut self, change: Self) -> Self {
        self.arguments.extend(change.arguments);
        Self {
            tool: change.tool.or(self.tool),
            argument: change.argument.or(self.argument),
            arguments: self.arguments,
            fenced: change.fenced.or(self.fenced),
            ending: change.ending.or(self.ending),
            samples: change.samples.or(self.samples),
            because: change.because.or(self.because),
        }
    }

    /// What is wrong with it, for people.
    pub(super) fn wrong(&self) -> Option<&'static str> {
        if self.fenced.as_ref().is_some_and(|text| !text.contains(COMMAND)) {
            return Some("check.fenced needs {command} where the command is to stand");
        }
        match (self.samples, &self.because) {
            (Some(0), _) => Some("check.samples is at least 1"),
            (Some(2..), None) => {
                Some("check.samples of more than 1 needs check.because: what of its history the harness rewrites")
            }
            _ => None,
        }
    }
}

impl Spec {
    /// What the scripted policy says to this harness; its shell is told to run `command` if one is given.
    #[must_use]
    pub fn script(&self, command: Option<&str>) -> Script {
        let CheckSpec { tool, argument, arguments, fenced, ending, .. } = self.check.clone();
        let any = Script::default();
        Script {
            command: command.map_or(any.command, str::to_owned),
            tool,
            argument,
            arguments: arguments.into_iter().collect(),
            fenced,
            ending: ending.unwrap_or(any.ending),
        }
    }

    /// Whether the harness is told how many tokens the policy's window has: another window changes how it starts.
    ///
    /// # Errors
    /// If a template is wrong.
    pub fn tells_window(&self, harness: &Harness) -> Result<bool, SpecError> {
        let launch = |window| {
            let variables = Variables {
                root_url: "http://127.0.0.1:1",
                key: "key",
                prompt: "prompt",
                home: "/home",
                workdir: "/work",
                payload: "/payload",
                timeout_s: 1,
                context_window: Some(window),
                rollout: "rollout",
            };
            Launch::fill(harness, self, &variables)
        };
        Ok(launch(100_000)? != launch(200_000)?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalog::Catalog;
    use super::super::choice::Choice;
    use super::*;

    fn spec(check: &str) -> Result<Spec, String> {
        let text = format!(
            "name = \"own\"\nversion = \"1\"\ndescription = \"\"\nwire = \"chat\"\n[payload]\nbuild = \"b\"\nwhere = \"host\"\n\
             [run]\ncommand = [\"x\"]\n{check}"
        );
        Spec::parse("own", &text).map_err(|error| error.to_string())
    }

    #[test]
    fn variants_and_wires_say_what_is_other_with_them() {
        let text = "[check]\ntool = \"sh\"\nargument = \"c\"\narguments = { why = \"x\", n = 1 }\nending = { command = \"exit\" }\n\
                    [wires.messages.check]\nsamples = 2\nbecause = \"came back\"\n\
                    [variants.text]\nwires = [\"messages\"]\n[variants.text.check]\nfenced = \"`{command}`\"\narguments = { n = 2 }\n";
        let chosen = |choice: &Choice<'_>| spec(text).unwrap().with(choice).unwrap();
        let plain = chosen(&Choice::default());
        let script = plain.script(Some("ls"));
        assert_eq!((script.tool.as_deref(), script.argument.as_deref(), script.command.as_str()), (Some("sh"), Some("c"), "ls"));
        assert_eq!((script.arguments["why"].clone(), script.arguments["n"].clone()), ("x".into(), 1.into()));
        assert_eq!((script.ending, script.fenced, plain.check.samples), (Ending::Command("exit".to_owned()), None, None));
        let text = chosen(&Choice { variant: Some("text"), ..Choice::default() });
        assert_eq!((text.check.samples, text.check.because.as_deref()), (Some(2), Some("came back")));
        assert_eq!((text.check.fenced.as_deref(), &text.check.arguments["n"]), (Some("`{command}`"), &2.into()));
        assert_eq!(spec("").unwrap().script(None), Script::default());
    }

    #[test]
    fn what_can_not_be_checked_is_refused() {
        let wrong = |check: &str| spec(check).unwrap_err();
        assert_eq!(wrong("[check]\nfenced = \"x\"\n"), "own: check.fenced needs {command} where the command is to stand");
        assert!(wrong("[check]\nsamples = 2\n").contains("needs check.because"));
        assert!(wrong("[wires.chat.check]\nsamples = 0\n").contains("at least 1"));
        let near = wrong("[check]\narguement = \"x\"\n");
        assert!(near.ends_with("(did you mean argument?)") || near.ends_with("(did you mean arguments?)"), "{near}");
    }

    /// What Gleaner ships is said, not guessed.
    #[test]
    fn every_harness_of_ours_says_how_it_is_checked_on_each_of_its_wires() {
        let catalog = Catalog::load(None).unwrap();
        for harness in catalog.all() {
            let variants = harness.spec.variants.keys().map(String::as_str).map(Some).chain([None]);
            for (wire, variant) in harness.spec.wires().flat_map(|wire| variants.clone().map(move |variant| (wire, variant))) {
                let Ok(spec) = harness.spec.clone().with(&Choice { variant, wire: Some(wire), set: &[] }) else { continue };
                let named = spec.check.fenced.is_some() || spec.check.tool.is_some() && spec.check.argument.is_some();
                assert!(named, "{} {variant:?} on {wire} names no shell in [check]", spec.name);
            }
        }
    }

    #[test]
    fn a_window_is_told_where_a_template_has_it() {
        let window = |text: &str| {
            let spec = spec(text).unwrap();
            let harness = Harness { spec: spec.clone(), files: BTreeMap::new(), origin: String::new(), baseline: None };
            spec.tells_window(&harness).unwrap()
        };
        assert!(!window(""));
        assert!(!window("[parameters]\ncontext_window = 5\n"), "nothing reads it");
        assert!(window("env = { WINDOW = \"{{context_window}}\" }\n[parameters]\ncontext_window = 5\n"));
    }
}
