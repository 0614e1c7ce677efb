//! RQs, SQs, TIRs, TISes and RQ tables: commands to objects of [`crate::eth`], which knows their rules.

use super::vport::ethernet;
use super::{Cmd, Outcome, output};
use crate::eth::{rq, rqt, sq, tir, tis};
use mlx_prm::{
    CreateRqOut, CreateRqtOut, CreateSqOut, CreateTirOut, CreateTisOut, DestroyRqIn, DestroyRqOut,
    DestroyRqtIn, DestroyRqtOut, DestroySqIn, DestroySqOut, DestroyTirIn, DestroyTirOut,
    DestroyTisIn, DestroyTisOut, ModifyRqOut, ModifyRqtOut, ModifySqOut, ModifyTirOut,
    ModifyTisOut, QueryRqIn, QueryRqOut, QueryRqtIn, QueryRqtOut, QuerySqIn, QuerySqOut,
    QueryTirIn, QueryTirOut, QueryTisIn, QueryTisOut,
};
use zerocopy::IntoBytes;

pub(super) fn create_rq(cmd: &mut Cmd<'_>) -> Outcome {
    ethernet(cmd)?;
    let input = cmd.read();
    let mut out = CreateRqOut::new();
    out.set_rqn(rq::create(cmd, &input)?);
    output(&out)
}

pub(super) fn modify_rq(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    rq::modify(cmd, &input)?;
    output(&ModifyRqOut::new())
}

pub(super) fn destroy_rq(cmd: &mut Cmd<'_>) -> Outcome {
    rq::destroy(cmd, cmd.read::<DestroyRqIn>().rqn())?;
    output(&DestroyRqOut::new())
}

pub(super) fn query_rq(cmd: &mut Cmd<'_>) -> Outcome {
    let mut out = QueryRqOut::new();
    out.set_rq_context(&rq::query(cmd, cmd.read::<QueryRqIn>().rqn())?);
    output(&out)
}

pub(super) fn create_sq(cmd: &mut Cmd<'_>) -> Outcome {
    ethernet(cmd)?;
    let input = cmd.read();
    let mut out = CreateSqOut::new();
    out.set_sqn(sq::create(cmd, &input)?);
    output(&out)
}

pub(super) fn modify_sq(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    sq::modify(cmd, &input)?;
    output(&ModifySqOut::new())
}

pub(super) fn destroy_sq(cmd: &mut Cmd<'_>) -> Outcome {
    sq::destroy(cmd, cmd.read::<DestroySqIn>().sqn())?;
    output(&DestroySqOut::new())
}

pub(super) fn query_sq(cmd: &mut Cmd<'_>) -> Outcome {
    let mut out = QuerySqOut::new();
    out.set_sq_context(&sq::query(cmd, cmd.read::<QuerySqIn>().sqn())?);
    output(&out)
}

pub(super) fn create_tir(cmd: &mut Cmd<'_>) -> Outcome {
    ethernet(cmd)?;
    let input = cmd.read();
    let mut out = CreateTirOut::new();
    out.set_tirn(tir::create(cmd, &input)?);
    output(&out)
}

pub(super) fn modify_tir(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    tir::modify(cmd, &input)?;
    output(&ModifyTirOut::new())
}

pub(super) fn destroy_tir(cmd: &mut Cmd<'_>) -> Outcome {
    tir::destroy(cmd, cmd.read::<DestroyTirIn>().tirn())?;
    output(&DestroyTirOut::new())
}

pub(super) fn query_tir(cmd: &mut Cmd<'_>) -> Outcome {
    let mut out = QueryTirOut::new();
    out.set_tir_context(&tir::query(cmd, cmd.read::<QueryTirIn>().tirn())?);
    output(&out)
}

pub(super) fn create_tis(cmd: &mut Cmd<'_>) -> Outcome {
    ethernet(cmd)?;
    let input = cmd.read();
    let mut out = CreateTisOut::new();
    out.set_tisn(tis::create(cmd, &input)?);
    output(&out)
}

pub(super) fn modify_tis(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    tis::modify(cmd, &input)?;
    output(&ModifyTisOut::new())
}

pub(super) fn destroy_tis(cmd: &mut Cmd<'_>) -> Outcome {
    tis::destroy(cmd, cmd.read::<DestroyTisIn>().tisn())?;
    output(&DestroyTisOut::new())
}

pub(super) fn query_tis(cmd: &mut Cmd<'_>) -> Outcome {
    let mut out = QueryTisOut::new();
    out.set_tis_context(&tis::query(cmd, cmd.read::<QueryTisIn>().tisn())?);
    output(&out)
}

pub(super) fn create_rqt(cmd: &mut Cmd<'_>) -> Outcome {
    ethernet(cmd)?;
    let input = cmd.read();
    let mut out = CreateRqtOut::new();
    out.set_rqtn(rqt::create(cmd, &input)?);
    output(&out)
}

pub(super) fn modify_rqt(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    rqt::modify(cmd, &input)?;
    output(&ModifyRqtOut::new())
}

pub(super) fn destroy_rqt(cmd: &mut Cmd<'_>) -> Outcome {
    rqt::destroy(cmd, cmd.read::<DestroyRqtIn>().rqtn())?;
    output(&DestroyRqtOut::new())
}

/// The entries follow.
pub(super) fn query_rqt(cmd: &mut Cmd<'_>) -> Outcome {
    let (context, entries) = rqt::query(cmd, cmd.read::<QueryRqtIn>().rqtn())?;
    let mut out = QueryRqtOut::new();
    out.set_rqt_context(&context);
    let mut bytes = out.as_bytes().to_vec();
    bytes.extend(entries.iter().flat_map(|rqn| rqn.to_be_bytes()));
    Ok(bytes)
}
