//! User contexts: identities on whose behalf a driver gives commands (Linux' DevX).
//!
//! A program with a device file of its own gives commands through its kernel, which puts the number of the program's
//! context ("uid") into each. What the program makes that way is the context's; it reaches nothing of another context
//! or of the driver ([`Table::act_for`](crate::objects::Table::act_for)). The driver itself is 0. Linux makes one
//! context for each program that asks for DevX (`mlx5_ib` `devx.c`), and destroys it when everything in it is.

/// Bit of [`Uctx::rights`]: send queues for frames that the program makes itself.
pub const RAW_TX: u32 = 1;

/// A user context.
#[derive(Clone, Copy, Debug)]
pub struct Uctx {
    /// What it may do besides plain objects, of what capability `uctx_cap` names.
    pub rights: u32,
    /// Destroyed, but for doorbell pages: Linux has a program's context destroyed while pages that are mapped in the
    /// program are left, and gives them back in its name when they go (`mlx5_ib_dealloc_ucontext` and
    /// `mlx5_ib_mmap_free` in drivers/infiniband/hw/mlx5/main.c). Nobody else has its number meanwhile, and nothing
    /// else is done in its name.
    pub is_over: bool,
}
