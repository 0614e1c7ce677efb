//! `dat_last_error_text`: details of the last error of a thread, beyond the error code.
//!
//! A `DAT_RETURN` has only a type and a subtype. The details are a sentence about the argument, the state, or the error
//! of the device or the system. [`answer`](super::answer::answer) records every error here, for the thread that got it.
//! The text is put together only when the program requests it.
//!
//! Most sentences are constants inside the [`DatError`]. Sentences with numbers and names ([`because_of`]) are stored
//! here until a call returns their error, and are dropped if another error is returned first.
//!
//! DAT_QUEUE_EMPTY and DAT_TIMEOUT_EXPIRED are not recorded, so that polling costs nothing.

// UNSAFETY: writes through a pointer of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::cell::RefCell;
use core::ffi::c_char;
use core::fmt::Display;
use std::ffi::CString;

use dat_core::{DatError, ReturnType, Subtype};

use super::argument::put;
use super::types::DatReturn;

/// Text in an error's details that refers to the device's error.
const SEE_DEVICE: &str = "see last_device_error";

#[derive(Default)]
struct Last {
    error: Option<DatError>,
    /// Details of `error` that are not in its constant sentence.
    sentence: String,
    /// An error with its sentence that no call has returned yet.
    waiting: Option<(DatError, String)>,
    /// Text that the last `dat_last_error_text` returned. It must stay valid.
    text: CString,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

/// Records the error that a call returns, with its stored sentence if there is one.
pub(super) fn note(error: DatError) {
    if matches!(
        error.return_type(),
        ReturnType::QueueEmpty | ReturnType::TimeoutExpired
    ) {
        return;
    }
    change(|last| {
        let sentence = last.waiting.take().filter(|(of, _)| *of == error);
        last.sentence = sentence.map_or_else(String::new, |(_, sentence)| sentence);
        last.error = Some(error);
    });
}

/// Stores a sentence with numbers and names for an error, and returns the error.
pub(super) fn because_of(error: DatError, sentence: &dyn Display) -> DatError {
    change(|last| last.waiting = Some((error, sentence.to_string())));
    error
}

/// Stores the device's error text for `error`, if `error` refers to it or if `error` is about an unreachable address,
/// which the device's error names.
pub(super) fn note_device_error(error: DatError, said: Option<&str>) {
    if let Some(said) = said
        && (error.detail().contains(SEE_DEVICE) || error.subtype() == Subtype::AddressUnreachable)
    {
        because_of(error, &said);
    }
}

/// Changes the thread's state. Does nothing in a thread that is ending.
fn change(work: impl FnOnce(&mut Last)) {
    let _over = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            work(&mut last);
        }
    });
}

impl Last {
    fn words(&self) -> String {
        let Some(error) = &self.error else {
            return String::new();
        };
        let sentence = &self.sentence;
        if sentence.is_empty() {
            return error.to_string();
        }
        match error.detail().split_once(SEE_DEVICE) {
            Some((before, _)) => format!("{}: {before}{sentence}", error.names()),
            None if error.detail().is_empty() => format!("{}: {sentence}", error.names()),
            None => format!("{error}: {sentence}"),
        }
    }
}

/// Returns the code of this thread's last error, and its text. Never fails: before the first error the code is 0 and
/// the text is empty. The text is valid until the thread calls this function again or ends.
///
/// # Safety
/// `refused` and `text` are null or point to memory for their types.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_last_error_text(
    refused: *mut DatReturn,
    text: *mut *const c_char,
) -> DatReturn {
    let (mut code, mut at) = (0, c"".as_ptr());
    change(|last| {
        let mut words = last.words();
        words.retain(|letter| letter != '\0');
        last.text = CString::new(words).unwrap_or_default();
        code = last.error.map_or(0, DatError::code);
        at = last.text.as_ptr();
    });
    // SAFETY: contract ROOM.
    unsafe { put(refused, code) };
    // SAFETY: contract ROOM.
    unsafe { put(text, at) };
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> (u32, String) {
        let mut found = (0, String::new());
        change(|last| found = (last.error.map_or(0, DatError::code), last.words()));
        found
    }

    const NO_MEMORY: DatError = DatError::new(
        ReturnType::InsufficientResources,
        Subtype::ResourceMemoryRegion,
    );

    #[test]
    fn a_sentence_belongs_to_the_error_it_was_said_of_and_to_no_other() {
        note(because_of(NO_MEMORY, &"errno 12"));
        let (code, words) = last();
        assert_eq!(code, NO_MEMORY.code());
        assert!(words.ends_with("): errno 12"), "{words}");
        note(NO_MEMORY);
        assert!(!last().1.contains("errno"), "the same error, later");
        because_of(NO_MEMORY, &"errno 12");
        note(DatError::new(ReturnType::InvalidHandle, Subtype::HandleEp));
        assert!(!last().1.contains("errno"), "another error");
        note(NO_MEMORY);
        assert!(!last().1.contains("errno"), "and it is forgotten");
    }

    #[test]
    fn an_empty_queue_and_a_wait_that_is_over_are_no_refusals() {
        note(NO_MEMORY);
        for kind in [ReturnType::QueueEmpty, ReturnType::TimeoutExpired] {
            note(DatError::new(kind, Subtype::None));
        }
        assert_eq!(last().0, NO_MEMORY.code());
    }

    #[test]
    fn what_the_device_said_stands_where_the_reader_is_sent_to_it() {
        let refused = DatError::new(ReturnType::InternalError, Subtype::None)
            .because("the device refused; see last_device_error");
        note_device_error(refused, Some("CREATE_MKEY: BAD_RES_STATE (0x9)"));
        note(refused);
        let words = last().1;
        assert!(
            words.ends_with("the device refused; CREATE_MKEY: BAD_RES_STATE (0x9)"),
            "{words}"
        );
        note_device_error(NO_MEMORY, Some("of something else"));
        note(NO_MEMORY);
        assert!(!last().1.contains("something else"));
    }

    #[test]
    fn each_thread_has_its_own() {
        note(NO_MEMORY);
        let other = std::thread::spawn(last).join().expect("it ends");
        assert_eq!(other, (0, String::new()));
    }
}
