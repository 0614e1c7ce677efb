//! Error sentences that contain a name. A [`DatError`](super::DatError) is `Copy` and owns no text, so such a sentence
//! is leaked and lives as long as the process. There is one sentence for each pair of adapters that were mixed up, and
//! at most [`MOST`].

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Maximum number of sentences. Further errors get a sentence without the name.
const MOST: usize = 64;

static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Returns a copy of `sentence` that lives as long as the process, or `otherwise` if there are too many.
pub(crate) fn text(sentence: &str, otherwise: &'static str) -> &'static str {
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = texts.get(sentence) {
        return text;
    }
    if texts.len() >= MOST {
        return otherwise;
    }
    let text: &'static str = Box::leak(sentence.to_owned().into_boxed_str());
    texts.insert(text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_kept_once_and_no_more_than_so_many_are() {
        let [one, same] = [0; 2].map(|_| text("it is sim:b's", ""));
        assert_eq!((one, one.as_ptr()), ("it is sim:b's", same.as_ptr()));
        let kept = (0..2 * MOST).filter(|number| !text(&number.to_string(), "").is_empty());
        assert!(kept.count() < MOST);
        assert_eq!(text("it is sim:b's", ""), one);
    }
}
