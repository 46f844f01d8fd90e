//! What a reply's history needs and the wire's own parts lose: clients drop thoughts from their history and write arguments anew,
//! but send a part's `thoughtSignature` back as it was. So ours carries the reasoning, and the calls' arguments to the letter.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Serialize};

/// Stands before what a signature of ours carries, so that it is told from others; the number is its version.
const MARK: &[u8] = b"gleaner.1\n";

/// Takes what clients make of padding.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent));

/// What a signature carries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Carried {
    /// All that was thought up to the part that is signed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) reasoning: String,
    /// The arguments of the signed call and of those after it, as they were sampled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) arguments: Vec<String>,
}

impl Carried {
    /// Writes a signature: bytes in base64.
    pub(super) fn sign(&self) -> String {
        let mut bytes = MARK.to_vec();
        // A `Vec` takes every write and the struct is always JSON.
        let _ = serde_json::to_writer(&mut bytes, self);
        BASE64.encode(bytes)
    }

    /// Reads a signature; `None` if it is not one of ours.
    pub(super) fn read(signature: &str) -> Option<Self> {
        // The Python SDK holds signatures as bytes, and writes them in base64's other alphabet.
        let bytes = BASE64.decode(standard(signature).as_ref()).ok()?;
        serde_json::from_slice(bytes.strip_prefix(MARK)?).ok()
    }
}

/// Base64 in its standard alphabet, whichever it came in.
pub(super) fn standard(base64: &str) -> std::borrow::Cow<'_, str> {
    if base64.contains(['-', '_']) { base64.replace('-', "+").replace('_', "/").into() } else { base64.into() }
}

/// Base64 in either alphabet as text; `None` if it is none.
pub(super) fn text(base64: &str) -> Option<String> {
    String::from_utf8(BASE64.decode(standard(base64).as_ref()).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(reasoning: &str) -> Carried {
        Carried { reasoning: reasoning.to_owned(), arguments: vec!["{\"a\": 1}".to_owned()] }
    }

    #[test]
    fn a_signature_comes_back_in_either_alphabet() {
        for reasoning in ["", "hm", "?>?>~~~ \u{1f600}\u{fffd}ÿÿÿ", "line\n\"two\""] {
            let signature = carried(reasoning).sign();
            let other = signature.replace('+', "-").replace('/', "_");
            for signature in [signature.as_str(), &other, other.trim_end_matches('=')] {
                assert_eq!(Carried::read(signature), Some(carried(reasoning)), "{signature}");
            }
        }
    }

    #[test]
    fn foreign_signatures_are_none_of_ours() {
        let newer = BASE64.encode(b"gleaner.2\n{}");
        for signature in ["", "skip_thought_signature_validator", "CpQBAdHtim8=", &newer, "Z2xlYW5lci4xCg==", "not base64!"] {
            assert_eq!(Carried::read(signature), None, "{signature}");
        }
    }
}
