#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gleaner_fuzz::output::run(data));
