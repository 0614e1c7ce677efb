//! The `command!` macro: a command's input and output as two layouts.

/// A command: input and output, each with the header all commands share, and the opcode they belong to.
macro_rules! command {
    ($( $(#[$meta:meta])* $opcode:ident: $input:ident($in_size:literal) { $($in_fields:tt)* } -> $output:ident($out_size:literal) { $($out_fields:tt)* } )+) => {$(
        layout::layout!(@struct [
            #[doc = concat!("Input of `", stringify!($opcode), "`.\n")]
            $(#[$meta])*
        ] $input $in_size {
            /// Which command this is.
            opcode: 0x00 (Opcode[31:16]),
            /// Variant of the command; 0 where the command has none.
            op_mod: 0x04[15:0],
            $($in_fields)*
        });

        #[allow(clippy::new_without_default, reason = "an all-zero command is not a sensible one")]
        impl $input {
            /// The opcode set and all else zero.
            #[must_use]
            pub fn new() -> Self {
                let mut input = Self { bytes: [0; $in_size] };
                input.set_opcode(Opcode::$opcode);
                input
            }
        }

        impl $crate::Command for $input {
            const OPCODE: Opcode = Opcode::$opcode;
            const NAME: &'static str = match Opcode::$opcode.name() {
                Some(name) => name,
                None => panic!("an opcode without a name"),
            };
            type Out = $output;
        }

        layout::layout!(@struct [
            #[doc = concat!("Output of `", stringify!($opcode), "`.\n")]
            $(#[$meta])*
        ] $output $out_size {
            /// What became of the command.
            status: 0x00 (CmdStatus[31:24]),
            /// The firmware's reason for a refusal; meaningful to its makers.
            syndrome: 0x04 u32,
            $($out_fields)*
        });

        #[allow(clippy::new_without_default, reason = "an all-zero answer is a claim of success")]
        impl $output {
            /// All zero: status OK.
            #[inline]
            #[must_use]
            pub const fn new() -> Self {
                Self { bytes: [0; $out_size] }
            }
        }

        impl $crate::CommandOutput for $output {
            fn status(&self) -> CmdStatus {
                $output::status(self)
            }

            fn syndrome(&self) -> u32 {
                $output::syndrome(self)
            }

            fn set_outcome(&mut self, status: CmdStatus, syndrome: u32) {
                self.set_status(status).set_syndrome(syndrome);
            }
        }
    )+};
}
pub(crate) use command;
