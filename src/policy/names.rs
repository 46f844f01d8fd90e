//! The names that a policy knows tools by: one flat list, whatever groups a client's wire has.

use std::collections::{HashMap, HashSet};

use crate::call::{Call, Text, Tool, ToolCall, ToolKind};

/// The longest name that servers take.
const LONGEST: usize = 64;

/// Both ways between a client's tool names and the policy's. Tools without a namespace keep their names.
#[derive(Debug, Default)]
pub(super) struct Names {
    flat: HashMap<(String, String), Text>,
    known: HashMap<String, Known>,
}

/// What stands behind a flat name.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub kind: ToolKind,
    pub namespace: Option<Text>,
    pub name: Text,
}

impl Names {
    /// Names the tools of a call; the same call gives the same names.
    pub(super) fn of(call: &Call) -> Self {
        let mut names = Self::default();
        if call.tools.iter().all(|tool| tool.namespace.is_none() && tool.kind == ToolKind::Function) {
            return names;
        }
        let plain = call.tools.iter().filter(|tool| tool.namespace.is_none());
        let mut taken: HashSet<String> = plain.map(|tool| tool.name.decode().into_owned()).collect();
        for tool in &call.tools {
            let name = tool.name.decode().into_owned();
            let known = Known { kind: tool.kind, namespace: tool.namespace.clone(), name: tool.name.clone() };
            let Some(namespace) = &tool.namespace else {
                names.known.insert(name, known);
                continue;
            };
            let namespace = namespace.decode().into_owned();
            let flat = free(&flatten(&namespace, &name), &taken);
            taken.insert(flat.clone());
            names.flat.insert((namespace, name), Text::new(&flat));
            names.known.insert(flat, known);
        }
        names
    }

    /// The name under which a tool is offered.
    pub(super) fn of_tool(&self, tool: &Tool) -> Text {
        self.offered(tool.namespace.as_ref(), &tool.name)
    }

    /// The name under which an earlier call is written.
    pub(super) fn of_call(&self, call: &ToolCall) -> Text {
        self.offered(call.namespace.as_ref(), &call.name)
    }

    /// The name under which `name` of `namespace` is offered, also if it is not any more.
    pub(super) fn offered(&self, namespace: Option<&Text>, name: &Text) -> Text {
        let Some(namespace) = namespace else { return name.clone() };
        let key = (namespace.decode().into_owned(), name.decode().into_owned());
        self.flat.get(&key).cloned().unwrap_or_else(|| Text::new(&flatten(&key.0, &key.1)))
    }

    /// What the policy means by a name; `None` for a function by its own name, offered or made up.
    pub(super) fn known(&self, flat: &Text) -> Option<&Known> {
        if self.known.is_empty() { None } else { self.known.get(&*flat.decode()) }
    }
}

fn flatten(namespace: &str, name: &str) -> String {
    let joined = format!("{namespace}__{name}");
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    joined.chars().map(allowed).take(LONGEST).collect()
}

fn free(wanted: &str, taken: &HashSet<String>) -> String {
    let mut name = wanted.to_owned();
    let mut number = 2;
    while taken.contains(&name) {
        let suffix = format!("_{number}");
        let cut = wanted.len().min(LONGEST - suffix.len());
        name = format!("{}{suffix}", &wanted[..cut]);
        number += 1;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::stub::call;

    fn tool(namespace: Option<&str>, name: &str) -> Tool {
        Tool {
            kind: ToolKind::Function,
            namespace: namespace.map(Text::new),
            name: Text::new(name),
            description: None,
            parameters: None,
            rest: Vec::new(),
        }
    }

    #[test]
    fn names_are_flat_unique_and_short() {
        let long = "n".repeat(80);
        let mut call = call();
        call.tools = vec![
            tool(None, "fs__read"),
            tool(Some("fs"), "read"),
            tool(Some("f.s"), "read file"),
            tool(Some("a"), &long),
            tool(Some("a"), &format!("{long}2")),
        ];
        let names = Names::of(&call);
        let flat: Vec<String> = call.tools.iter().map(|tool| names.of_tool(tool).decode().into_owned()).collect();
        let ns = "n".repeat(61);
        assert_eq!(
            flat,
            [
                "fs__read".to_owned(),
                "fs__read_2".to_owned(),
                "f_s__read_file".to_owned(),
                format!("a__{ns}"),
                format!("a__{}_2", &ns[2..]),
            ]
        );
        for (tool, flat) in call.tools.iter().zip(&flat) {
            let known = names.known(&Text::new(flat)).unwrap();
            assert_eq!((&known.namespace, &known.name), (&tool.namespace, &tool.name));
        }
        assert_eq!(names.offered(Some(&Text::new("gone")), &Text::new("x")), Text::new("gone__x"));
    }
}
