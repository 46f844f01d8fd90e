//! The two spellings of every field: JSON's (`topP`) and the API schema's own (`top_p`).

use crate::wire::fields::Fields;

/// The spelling by which a request gives a field; JSON's where it gives none, or both. Messages name the field as the client does.
pub(super) fn spelled<const N: usize>(fields: &Fields<'_, N>, [json, schema]: [&'static str; 2]) -> &'static str {
    if fields.value(json).is_none() && fields.value(schema).is_some() { schema } else { json }
}
