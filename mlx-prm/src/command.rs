//! The `command!` macro, which defines a command's input and output as two layouts.

/// Defines commands: for each, the opcode and the layouts of input and output, both with the common header.
macro_rules! command {
    ($( $(#[$meta:meta])* $opcode:ident: $input:ident($in_size:literal) { $($in_fields:tt)* } -> $output:ident($out_size:literal) { $($out_fields:tt)* } )+) => {$(
        layout::layout!(@struct [
            #[doc = concat!("Input of `", stringify!($opcode), "`.\n")]
            $(#[$meta])*
        ] $input $in_size {
            /// Opcode of the command.
            opcode: 0x00 (Opcode[31:16]),
            /// Variant of the command; 0 if it has none.
            op_mod: 0x04[15:0],
            $($in_fields)*
        });

        #[allow(clippy::new_without_default, reason = "an all-zero command is not a sensible one")]
        impl $input {
            /// Makes an input whose opcode is set and whose other bytes are zero.
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
            /// Status of the command.
            status: 0x00 (CmdStatus[31:24]),
            /// Vendor-specific reason why the firmware refused the command.
            syndrome: 0x04 u32,
            $($out_fields)*
        });

        #[allow(clippy::new_without_default, reason = "an all-zero answer is a claim of success")]
        impl $output {
            /// Makes an all-zero output, which reports status OK.
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
