//! Which of its ways a harness is run in: variant, wire and parameters, as a user chose them.

use super::spec::{Spec, SpecError, Variant, nearest};

/// A user's choices for a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice<'a> {
    pub variant: Option<&'a str>,
    /// The wire to speak; the variant's or the harness's own if `None`.
    pub wire: Option<&'a str>,
    /// Parameters set otherwise, by name.
    pub set: &'a [(String, String)],
}

impl Spec {
    /// The harness as it runs by a user's choices. A variant comes after the wire: it is the closer description.
    ///
    /// # Errors
    /// If there is no such variant or parameter, or the harness, or this variant of it, does not speak the wire.
    pub fn with(mut self, choice: &Choice<'_>) -> Result<Self, SpecError> {
        let variant = choice.variant.map(|name| self.variant(name)).transpose()?.unwrap_or_default();
        self.wire = self.chosen_wire(&variant, choice)?;
        let wire = self.wires.remove(&self.wire).unwrap_or_default();
        for change in [wire, variant] {
            self.run.command = change.command.unwrap_or(self.run.command);
            self.run.env.extend(change.env);
            self.parameters.extend(change.parameters);
            self.files.extend(change.files);
            self.check = self.check.changed_by(change.check);
            self.signature.extend(change.signature);
        }
        for (name, value) in choice.set {
            let Some(parameter) = self.parameters.get_mut(name) else {
                let near = nearest(name, self.parameters.keys().map(String::as_str));
                return Err(SpecError::NoParameter { harness: self.name, name: name.clone(), near });
            };
            *parameter = parameter.read(value).map_err(|kind| SpecError::NoValue {
                harness: self.name.clone(),
                name: name.clone(),
                kind,
                value: value.clone(),
            })?;
            self.chosen.insert(name.clone());
        }
        Ok(self)
    }

    fn variant(&self, name: &str) -> Result<Variant, SpecError> {
        self.variants.get(name).cloned().ok_or_else(|| SpecError::NoVariant {
            harness: self.name.clone(),
            name: name.to_owned(),
            near: nearest(name, self.variants.keys().map(String::as_str)),
        })
    }

    fn chosen_wire(&self, variant: &Variant, choice: &Choice<'_>) -> Result<String, SpecError> {
        let known: Vec<&str> =
            self.wires().filter(|wire| variant.wires.is_empty() || variant.wires.iter().any(|name| name == wire)).collect();
        let name = match (choice.wire, variant.wires.first()) {
            (Some(name), _) => name,
            (None, Some(own)) => own,
            (None, None) => &self.wire,
        };
        if known.contains(&name) {
            return Ok(name.to_owned());
        }
        let harness = choice.variant.map_or_else(|| self.name.clone(), |variant| format!("{}:{variant}", self.name));
        let near = nearest(name, known.iter().copied());
        Err(SpecError::NoWire { harness, name: name.to_owned(), near, known: known.join(", ") })
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::Parameter;
    use super::*;

    const SMALL: &str = r#"
        name = "small"
        version = "1"
        description = "a small one"
        wire = "chat"
        [payload]
        build = "build.sh"
        where = "host"
        [parameters]
        steps = 3
        class = "plain"
        deep = true
        [signature]
        user-agent = "small/*"
        [run]
        command = ["run", "{{steps}}"]
        env = { URL = "{{base_url}}" }
        [variants.long.parameters]
        steps = 9
        [variants.bare]
        wires = ["messages", "chat"]
        parameters = { class = "bare" }
        [wires.messages]
        env = { URL = "{{root_url}}" }
        parameters = { class = "blocks" }
        signature = { x-api = "*" }
        [wires.responses]
        command = ["respond"]
    "#;

    fn small(choice: &Choice<'_>) -> Result<Spec, String> {
        Spec::parse("small", SMALL).unwrap().with(choice).map_err(|error| error.to_string())
    }

    fn variant(name: &str) -> Choice<'_> {
        Choice { variant: Some(name), ..Choice::default() }
    }

    fn wire(name: &str) -> Choice<'_> {
        Choice { wire: Some(name), ..Choice::default() }
    }

    /// A parameter as it would stand in a template.
    fn text(spec: &Spec, name: &str) -> String {
        match &spec.parameters[name] {
            Parameter::Integer(number) => number.to_string(),
            Parameter::Bool(flag) => flag.to_string(),
            Parameter::Text(text) => text.clone(),
        }
    }

    #[test]
    fn variants_and_settings_replace_parameters() {
        let steps = |choice: &Choice<'_>| text(&small(choice).unwrap(), "steps");
        assert_eq!(steps(&Choice::default()), "3");
        assert_eq!(steps(&variant("long")), "9");
        let set = [("steps".to_owned(), "5".to_owned())];
        assert_eq!(steps(&Choice { set: &set, ..variant("long") }), "5");
    }

    #[test]
    fn a_setting_is_of_its_parameter_s_kind() {
        let set = |name: &str, value: &str| {
            let set = [(name.to_owned(), value.to_owned())];
            small(&Choice { set: &set, ..Choice::default() }).map(|spec| spec.parameters[name].clone())
        };
        assert_eq!(set("steps", "5"), Ok(Parameter::Integer(5)));
        assert_eq!(set("deep", "false"), Ok(Parameter::Bool(false)));
        assert_eq!(set("class", "5"), Ok(Parameter::Text("5".to_owned())));
        assert_eq!(set("steps", "few").unwrap_err(), "parameter steps of harness small is a whole number, not \"few\"");
        assert_eq!(set("deep", "1").unwrap_err(), "parameter deep of harness small is true or false, not \"1\"");
    }

    #[test]
    fn a_wire_changes_what_it_names_and_a_variant_has_the_last_word() {
        let told = |choice: &Choice<'_>| {
            let spec = small(choice).unwrap();
            (spec.wire.clone(), spec.run.env["URL"].clone(), text(&spec, "class"), spec.run.command[0].clone())
        };
        let expected = |parts: [&str; 4]| {
            let [wire, url, class, command] = parts.map(str::to_owned);
            (wire, url, class, command)
        };
        assert_eq!(told(&Choice::default()), expected(["chat", "{{base_url}}", "plain", "run"]));
        assert_eq!(told(&wire("chat")), expected(["chat", "{{base_url}}", "plain", "run"]));
        assert_eq!(told(&wire("messages")), expected(["messages", "{{root_url}}", "blocks", "run"]));
        assert_eq!(told(&wire("responses")), expected(["responses", "{{base_url}}", "plain", "respond"]));
        assert_eq!(told(&variant("bare")), expected(["messages", "{{root_url}}", "bare", "run"]));
        assert_eq!(told(&Choice { wire: Some("chat"), ..variant("bare") }), expected(["chat", "{{base_url}}", "bare", "run"]));
    }

    #[test]
    fn a_wire_s_own_headers_are_beside_those_of_all() {
        let signature = |choice: &Choice<'_>| small(choice).unwrap().signature.into_keys().collect::<Vec<_>>();
        assert_eq!(signature(&Choice::default()), ["user-agent"]);
        assert_eq!(signature(&wire("messages")), ["user-agent", "x-api"]);
    }

    #[test]
    fn wrong_names_are_refused_with_the_nearest() {
        let wrong = |choice: &Choice<'_>| small(choice).unwrap_err();
        assert_eq!(wrong(&variant("lng")), "harness small has no variant lng (did you mean long?)");
        let set = [("stps".to_owned(), "5".to_owned())];
        let setting = Choice { set: &set, ..Choice::default() };
        assert_eq!(wrong(&setting), "harness small has no parameter stps (did you mean steps?)");
        let expected = "small does not speak the wire mesages (did you mean messages?); it speaks: chat, messages, responses";
        assert_eq!(wrong(&wire("mesages")), expected);
        let other = Choice { wire: Some("gemini"), ..variant("bare") };
        assert_eq!(wrong(&other), "small:bare does not speak the wire gemini; it speaks: chat, messages");
    }
}
