//! `va_list` of the C ABIs for 64-bit Linux: the arguments of a variadic function, which its caller passes by address.
//!
//! Only numbers and pointers are read. Both ABIs pass these in general registers and then on the stack (System V ABI
//! for AMD64, section 3.5.7 "Variable Argument Lists"; Procedure Call Standard for the Arm 64-bit Architecture,
//! "Variable parameter lists").

// UNSAFETY: dereferences the list's pointers.
#![expect(unsafe_code, reason = "a va_list of a C caller")]

/// `va_list` of the System V ABI for AMD64.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
pub struct VaList {
    /// Offset of the next general register in the save area, in bytes; 48 when all have been read.
    gp_offset: u32,
    _fp_offset: u32,
    overflow_arg_area: *const u64,
    reg_save_area: *const u8,
}

/// `va_list` of the Procedure Call Standard for the Arm 64-bit Architecture.
#[cfg(target_arch = "aarch64")]
#[repr(C)]
pub struct VaList {
    stack: *const u64,
    gr_top: *const u8,
    _vr_top: *const u8,
    /// Offset of the next general register from `gr_top`, in bytes: negative; at least 0 when all have been read.
    gr_offs: core::ffi::c_int,
    _vr_offs: core::ffi::c_int,
}

impl VaList {
    /// Returns the next argument.
    ///
    /// # Safety
    /// The list comes from a C caller, and it has another argument, which is a number or a pointer.
    #[cfg(target_arch = "x86_64")]
    unsafe fn next(&mut self) -> u64 {
        const REGISTERS_END: u32 = 48;
        if self.gp_offset < REGISTERS_END {
            let at = self
                .reg_save_area
                .wrapping_add(self.gp_offset as usize)
                .cast::<u64>();
            self.gp_offset += 8;
            // SAFETY: a C caller made the list, and its save area has 48 bytes of aligned general registers.
            return unsafe { at.read() };
        }
        let at = self.overflow_arg_area;
        self.overflow_arg_area = at.wrapping_add(1);
        // SAFETY: a C caller made the list, and it has another argument on the stack.
        unsafe { at.read() }
    }

    /// Returns the next argument.
    ///
    /// # Safety
    /// The list comes from a C caller, and it has another argument, which is a number or a pointer.
    #[cfg(target_arch = "aarch64")]
    unsafe fn next(&mut self) -> u64 {
        if self.gr_offs < 0 {
            let at = self
                .gr_top
                .wrapping_offset(self.gr_offs as isize)
                .cast::<u64>();
            self.gr_offs += 8;
            // SAFETY: a C caller made the list, and the saved general registers are below `gr_top`, each aligned.
            return unsafe { at.read() };
        }
        let at = self.stack;
        self.stack = at.wrapping_add(1);
        // SAFETY: a C caller made the list, and it has another argument on the stack.
        unsafe { at.read() }
    }

    /// Returns the next `N` arguments.
    ///
    /// # Safety
    /// The list comes from a C caller, and it has `N` more arguments, which are numbers or pointers.
    pub(super) unsafe fn take<const N: usize>(&mut self) -> [u64; N] {
        core::array::from_fn(|_| {
            // SAFETY: contract PASSED ON, for each of the `N` arguments.
            unsafe { self.next() }
        })
    }
}

/// Returns a 32-bit argument: the lower half of the 64-bit word. The upper half is undefined.
#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
pub(super) const fn number(argument: u64) -> u32 {
    argument as u32
}

/// Converts an argument that is a pointer.
pub(super) fn pointer<T>(argument: u64) -> *const T {
    // Addresses have 64 bits on all supported machines.
    core::ptr::with_exposed_provenance(usize::try_from(argument).unwrap_or(0))
}
