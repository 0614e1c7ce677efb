//! Moves the bytes once by each kind of DTO.
//!
//! Every kind posts a window of up to `DEPTH` messages, waits for all their completions, and then posts the next.

use anyhow::{Result, bail, ensure};
use indicatif::ProgressBar;
use udapl::event::DtoCompletion;
use udapl::{CompletionFlags, DtoCookie, DtoStatus, EpHandle, EvdHandle, Event};

use super::kind::Kind;
use super::pieces;
use super::setup::{DEPTH, Job};

const FLAGS: CompletionFlags = CompletionFlags::empty();

impl Job {
    /// Moves all bytes by one kind of DTO, in pieces of `chunk` bytes. Returns the numbers of messages and completions.
    pub fn transfer(
        &mut self,
        kind: Kind,
        chunk: usize,
        progress: &ProgressBar,
    ) -> Result<(u64, u64)> {
        let pieces: Vec<(usize, usize)> = pieces(self.source().len(), chunk).collect();
        let completions = match kind {
            Kind::Send => self.send(&pieces, progress)?,
            Kind::Srq => self.send_shared(&pieces, progress)?,
            Kind::Write => self.write(&pieces, progress)?,
            Kind::Read => self.read(&pieces, progress)?,
        };
        Ok((pieces.len() as u64, completions))
    }

    /// Waits for the next completion of a side, which must be a success.
    fn completed(&mut self, side: usize, evd: EvdHandle) -> Result<DtoCompletion> {
        let event = self.wait(side, evd)?;
        let Event::Dto(done) = event else {
            bail!("{event:?} instead of a completion");
        };
        ensure!(
            done.status == DtoStatus::Success,
            "message {}: {} (syndrome {:#04x}, vendor {:#04x})",
            done.cookie.0,
            done.status.name(),
            done.syndrome().0,
            done.syndrome().1
        );
        Ok(done)
    }

    fn send(&mut self, pieces: &[(usize, usize)], progress: &ProgressBar) -> Result<u64> {
        let (a, b) = (self.a.endpoints[0], self.b.endpoints[0]);
        let sink = self.sinks[Kind::Send as usize].lmr;
        for (first, window) in (0..).step_by(DEPTH).zip(pieces.chunks(DEPTH)) {
            for (number, &(offset, bytes)) in (first..).zip(window) {
                let slice = self.b.ia.lmr_slice(sink, offset as u64, bytes as u64)?;
                self.b
                    .ia
                    .ep_post_recv(b, &[slice], DtoCookie(number), FLAGS)?;
            }
            for (number, &(offset, bytes)) in (first..).zip(window) {
                let slice = self
                    .a
                    .ia
                    .lmr_slice(self.source.lmr, offset as u64, bytes as u64)?;
                self.a
                    .ia
                    .ep_post_send(a, &[slice], DtoCookie(number), FLAGS)?;
            }
            for (number, &(_, bytes)) in (first..).zip(window) {
                let received = self.completed(1, self.b.completions)?;
                ensure!(
                    received.cookie == DtoCookie(number)
                        && received.transferred_length == bytes as u64,
                    "{received:?} for message {number}"
                );
                self.completed(0, self.a.completions)?;
                progress.inc(bytes as u64);
            }
        }
        Ok(2 * pieces.len() as u64)
    }

    /// Sends even messages over one connection and odd messages over the other. The SRQ gives its buffers to messages
    /// in the order of arrival. Each connection keeps the order of its sends, so the connection of a completion
    /// identifies the message in the buffer, which is then copied to its offset in the sink.
    fn send_shared(&mut self, pieces: &[(usize, usize)], progress: &ProgressBar) -> Result<u64> {
        let connections: [(EpHandle, EpHandle); 2] = [
            (self.a.endpoints[1], self.b.endpoints[1]),
            (self.a.endpoints[2], self.b.endpoints[2]),
        ];
        let longest = pieces.first().map_or(0, |&(_, bytes)| bytes);
        let pool = udapl::alloc(&self.b.ia, longest * 2 * DEPTH)?;
        let region =
            self.b
                .ia
                .lmr_create(pool.clone(), self.b.pz, udapl::MemPrivFlags::LOCAL_WRITE)?;
        for (first, window) in (0..).step_by(DEPTH).zip(pieces.chunks(DEPTH)) {
            for place in 0..window.len() {
                let slice =
                    self.b
                        .ia
                        .lmr_slice(region.lmr, (place * longest) as u64, longest as u64)?;
                self.b
                    .ia
                    .srq_post_recv(self.srq, &[slice], DtoCookie(place as u64))?;
            }
            for (number, &(offset, bytes)) in (first..).zip(window) {
                let (a, _) = connections[number % 2];
                let slice = self
                    .a
                    .ia
                    .lmr_slice(self.source.lmr, offset as u64, bytes as u64)?;
                self.a
                    .ia
                    .ep_post_send(a, &[slice], DtoCookie(number as u64), FLAGS)?;
            }
            // Number of the next message of each connection.
            let mut next = [0, 1].map(|odd| (first..first + window.len()).find(|at| at % 2 == odd));
            for _ in window {
                let received = self.completed(1, self.b.completions)?;
                let connection = connections
                    .iter()
                    .position(|&(_, b)| b == received.ep)
                    .ok_or_else(|| anyhow::anyhow!("{received:?} is of neither connection"))?;
                let Some(number) = next[connection] else {
                    bail!(
                        "connection {connection} completes more than was sent on it: {received:?}"
                    );
                };
                next[connection] = Some(number + 2);
                let (offset, bytes) = pieces[number];
                ensure!(
                    received.transferred_length == bytes as u64,
                    "{received:?} for message {number}"
                );
                let place = usize::try_from(received.cookie.0)? * longest;
                let sink = &self.sinks[Kind::Srq as usize].memory;
                sink.write_from(offset, &pool.read(place, bytes)?)?;
                self.completed(0, self.a.completions)?;
                progress.inc(bytes as u64);
            }
        }
        self.b.ia.lmr_free(region.lmr)?;
        Ok(2 * pieces.len() as u64)
    }

    fn write(&mut self, pieces: &[(usize, usize)], progress: &ProgressBar) -> Result<u64> {
        let a = self.a.endpoints[0];
        let target = self.remote_sinks[0];
        for (first, window) in (0..).step_by(DEPTH).zip(pieces.chunks(DEPTH)) {
            for (number, &(offset, bytes)) in (first..).zip(window) {
                let slice = self
                    .a
                    .ia
                    .lmr_slice(self.source.lmr, offset as u64, bytes as u64)?;
                let remote = part(target, offset, bytes);
                self.a
                    .ia
                    .ep_post_rdma_write(a, &[slice], DtoCookie(number), &remote, FLAGS)?;
            }
            for &(_, bytes) in window {
                self.completed(0, self.a.completions)?;
                progress.inc(bytes as u64);
            }
        }
        Ok(pieces.len() as u64)
    }

    fn read(&mut self, pieces: &[(usize, usize)], progress: &ProgressBar) -> Result<u64> {
        let b = self.b.endpoints[0];
        let Some(source) = self.remote_source else {
            bail!("A never said where its memory is")
        };
        let sink = self.sinks[Kind::Read as usize].lmr;
        for (first, window) in (0..).step_by(DEPTH).zip(pieces.chunks(DEPTH)) {
            for (number, &(offset, bytes)) in (first..).zip(window) {
                let slice = self.b.ia.lmr_slice(sink, offset as u64, bytes as u64)?;
                let remote = part(source, offset, bytes);
                self.b
                    .ia
                    .ep_post_rdma_read(b, &[slice], DtoCookie(number), &remote, FLAGS)?;
            }
            for &(_, bytes) in window {
                self.completed(1, self.b.completions)?;
                progress.inc(bytes as u64);
            }
        }
        Ok(pieces.len() as u64)
    }
}

/// Returns a part of the peer's memory.
const fn part(
    whole: udapl::memory::RmrTriplet,
    offset: usize,
    bytes: usize,
) -> udapl::memory::RmrTriplet {
    udapl::memory::RmrTriplet {
        target_address: whole.target_address + offset as u64,
        segment_length: bytes as u64,
        ..whole
    }
}
