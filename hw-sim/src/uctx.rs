//! User contexts: identities on whose behalf a driver issues commands (DevX in Linux).
//!
//! A program with its own device file issues commands through the kernel, which puts the number of the program's
//! context ("uid") into each command. An object that such a command creates belongs to the context. A context has no
//! access to objects of another context or of the driver ([`Table::act_for`](crate::objects::Table::act_for)). The uid
//! of the driver itself is 0. Linux creates one context for each program that requests DevX (`mlx5_ib` `devx.c`), and
//! destroys it after all its objects.

/// Bit of [`Uctx::rights`]: the context may create send queues for frames that the program builds itself.
pub const RAW_TX: u32 = 1;

/// A user context.
#[derive(Clone, Copy, Debug)]
pub struct Uctx {
    /// Rights beyond the creation of ordinary objects. The possible bits are those of capability `uctx_cap`.
    pub rights: u32,
    /// True if the context is destroyed, but its doorbell pages are not. Linux destroys a program's context while
    /// doorbell pages are still mapped in the program, and later frees these pages with the context's uid
    /// (`mlx5_ib_dealloc_ucontext` and `mlx5_ib_mmap_free` in drivers/infiniband/hw/mlx5/main.c). Until then the uid is
    /// not reused, and no other command may use it.
    pub is_over: bool,
}
