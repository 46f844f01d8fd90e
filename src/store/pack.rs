//! Token ids and log-probabilities as bytes: ids as LEB128 varints, log-probabilities exactly.

/// All numbers of the array are exactly `f32`s, four bytes each.
const F32: u8 = 0;
/// They are `f64`s, eight bytes each.
const F64: u8 = 1;

/// Packs token ids.
pub(super) fn ids(ids: &[u32]) -> Vec<u8> {
    // Vocabularies of today fit into three bytes.
    let mut out = Vec::with_capacity(ids.len() * 3);
    append_ids(&mut out, ids);
    out
}

/// Appends token ids.
pub(super) fn append_ids(out: &mut Vec<u8>, ids: &[u32]) {
    for &id in ids {
        varint(out, id.into());
    }
}

/// The checksum of token ids.
pub(super) fn ids_sum(ids: &[u32]) -> u32 {
    // In pieces that stay in the first cache.
    let mut sum = crc32fast::Hasher::new();
    let mut bytes = [0; 4096];
    for piece in ids.chunks(bytes.len() / 4) {
        for (id, place) in piece.iter().zip(bytes.as_chunks_mut::<4>().0) {
            *place = id.to_le_bytes();
        }
        sum.update(&bytes[..piece.len() * 4]);
    }
    sum.finalize()
}

/// Unpacks token ids; `None` if the bytes are no such thing.
pub(super) fn unpack_ids(mut bytes: &[u8]) -> Option<Vec<u32>> {
    let mut ids = Vec::with_capacity(bytes.len() / 2);
    while !bytes.is_empty() {
        ids.push(u32::try_from(read_varint(&mut bytes)?).ok()?);
    }
    Some(ids)
}

/// Unpacks how many ids are shared with another sequence, and those that follow.
pub(super) fn unpack_tail(mut bytes: &[u8]) -> Option<(usize, Vec<u32>)> {
    let shared = usize::try_from(read_varint(&mut bytes)?).ok()?;
    Some((shared, unpack_ids(bytes)?))
}

/// Packs log-probabilities. Most servers compute them as `f32`, which then holds them exactly.
#[expect(clippy::cast_possible_truncation, reason = "the cast is the question: it is undone and compared")]
pub(super) fn floats(values: &[f64]) -> Vec<u8> {
    if values.is_empty() {
        return Vec::new();
    }
    if values.iter().all(|&value| f64::from(value as f32).to_bits() == value.to_bits()) {
        let mut out = Vec::with_capacity(1 + values.len() * 4);
        out.push(F32);
        for &value in values {
            out.extend_from_slice(&(value as f32).to_le_bytes());
        }
        return out;
    }
    let mut out = Vec::with_capacity(1 + values.len() * 8);
    out.push(F64);
    for value in values {
        out.extend_from_slice(&value.to_le_bytes());
    }
    out
}

/// Unpacks log-probabilities; `None` if the bytes are no such thing.
pub(super) fn unpack_floats(bytes: &[u8]) -> Option<Vec<f64>> {
    let Some((flag, rest)) = bytes.split_first() else { return Some(Vec::new()) };
    match *flag {
        F32 => {
            let (chunks, []) = rest.as_chunks::<4>() else { return None };
            Some(chunks.iter().map(|chunk| f32::from_le_bytes(*chunk).into()).collect())
        }
        F64 => {
            let (chunks, []) = rest.as_chunks::<8>() else { return None };
            Some(chunks.iter().map(|chunk| f64::from_le_bytes(*chunk)).collect())
        }
        _ => None,
    }
}

/// Appends a LEB128 varint.
pub(super) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// Takes a LEB128 varint off the front of `bytes`.
pub(super) fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bits(values: &[f64]) -> Vec<u64> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    proptest! {
        #[test]
        fn ids_come_back(list: Vec<u32>) {
            prop_assert_eq!(unpack_ids(&ids(&list)), Some(list));
        }

        #[test]
        fn floats_come_back_bit_by_bit(list in prop::collection::vec(any::<u64>().prop_map(f64::from_bits), 0..50)) {
            prop_assert_eq!(unpack_floats(&floats(&list)).map(|back| bits(&back)), Some(bits(&list)));
        }

        #[test]
        fn singles_take_four_bytes_each(list in prop::collection::vec(any::<f32>().prop_filter("NaN has many forms", |f| !f.is_nan()), 1..50)) {
            let list: Vec<f64> = list.into_iter().map(f64::from).collect();
            let packed = floats(&list);
            prop_assert_eq!(packed.len(), 1 + 4 * list.len());
            prop_assert_eq!(unpack_floats(&packed).map(|back| bits(&back)), Some(bits(&list)));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = (unpack_ids(&bytes), unpack_floats(&bytes));
        }
    }

    #[test]
    fn broken_arrays_are_refused() {
        assert_eq!(unpack_ids(&[0x80]), None);
        assert_eq!(unpack_ids(&[0xff; 10]), None);
        assert_eq!(unpack_floats(&[F32, 1, 2, 3]), None);
        assert_eq!(unpack_floats(&[7]), None);
    }
}
