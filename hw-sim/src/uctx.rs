//! User contexts: identities for which a driver gives commands (Linux' DevX).
//!
//! A program with its own device file gives commands through its kernel, which puts the number of the program's
//! context ("uid") into each. Objects made that way belong to the context, which has no access to objects of another
//! context or of the driver ([`Table::act_for`](crate::objects::Table::act_for)). The driver itself is 0. Linux makes
//! one context for each program that asks for DevX (`mlx5_ib` `devx.c`), and destroys it after all its objects.

/// Bit of [`Uctx::rights`]: send queues for frames that the program makes itself.
pub const RAW_TX: u32 = 1;

/// A user context.
#[derive(Clone, Copy, Debug)]
pub struct Uctx {
    /// Rights beyond plain objects, among those of capability `uctx_cap`.
    pub rights: u32,
    /// True if it is destroyed except for doorbell pages: Linux destroys a program's context while doorbell pages are
    /// still mapped in the program, and frees these later with its uid (`mlx5_ib_dealloc_ucontext` and
    /// `mlx5_ib_mmap_free` in drivers/infiniband/hw/mlx5/main.c). Until then the uid is not reused, and no other
    /// command may use it.
    pub is_over: bool,
}
