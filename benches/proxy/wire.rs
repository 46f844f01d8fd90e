//! What clients speak: where a wire's requests are posted, what they look like, and how a stream that came whole ends.

/// One wire.
#[derive(Debug)]
pub struct Wire {
    path: &'static str,
    stream_path: &'static str,
    /// Around the system prompt and the user's text; `STREAM` stands for what says whether it is streamed.
    form: &'static str,
    /// What a whole stream ends with.
    pub end: &'static [u8],
}

pub const CHAT: Wire = Wire {
    path: "/v1/chat/completions",
    stream_path: "/v1/chat/completions",
    form: r#"{"model":"mock","messages":[{"role":"system","content":"SYSTEM"},{"role":"user","content":"TEXT"}],OWN}"#,
    end: b"data: [DONE]\n\n",
};
pub const MESSAGES: Wire = Wire {
    path: "/v1/messages",
    stream_path: "/v1/messages",
    form: r#"{"model":"mock","max_tokens":4096,"system":"SYSTEM","messages":[{"role":"user","content":"TEXT"}],"stream":STREAM}"#,
    end: b"message_stop\"}\n\n",
};
pub const GEMINI: Wire = Wire {
    path: "/v1beta/models/mock:generateContent",
    stream_path: "/v1beta/models/mock:streamGenerateContent?alt=sse",
    form: r#"{"systemInstruction":{"parts":[{"text":"SYSTEM"}]},"contents":[{"role":"user","parts":[{"text":"TEXT"}]}]}"#,
    end: b"\"}\n\n",
};
pub const RESPONSES: Wire = Wire {
    path: "/v1/responses",
    stream_path: "/v1/responses",
    form: r#"{"model":"mock","instructions":"SYSTEM","input":"TEXT","stream":STREAM}"#,
    end: b"}}}\n\n",
};
pub const COMPLETIONS: Wire = Wire {
    path: "/v1/completions",
    stream_path: "/v1/completions",
    form: r#"{"model":"mock","prompt":"SYSTEM TEXT","max_tokens":4096,"stream":STREAM}"#,
    end: b"data: [DONE]\n\n",
};

impl Wire {
    pub fn path(&self, stream: bool) -> &'static str {
        if stream { self.stream_path } else { self.path }
    }

    /// A request; `own` are the mock's own fields.
    pub fn body(&self, system: &str, text: &str, stream: bool, own: &str) -> String {
        let stream = if stream { "true" } else { "false" };
        self.form.replace("OWN", own).replace("STREAM", stream).replace("SYSTEM", system).replace("TEXT", text)
    }
}
