//! What the model answers.
