//! The Markov head: a bias from the token before, chained along the requested rows of each draft block.

use draftgauge_kernels::elementwise::{self, Largest};
use draftgauge_kernels::matmul::{ActKind, Acts, OutRows};
use draftgauge_kernels::shared::Shared;

use super::aligned::AlignedBytes;
use super::plan::{Markov, Plan};
use super::pool::Region;
use super::run::share_of;
use crate::backend::Forest;
use crate::error::Result;

/// The requested rows as chains, one a draft block.
pub(super) struct Chains {
    /// The block's first token, and the places of its requested rows among those of the chunk.
    chains: Vec<(u32, Vec<usize>)>,
}

impl Chains {
    /// The chains among `wanted`, (place in the request, row of the chunk), of a chunk that begins at row `first`.
    pub(super) fn new(forest: &Forest, first: usize, wanted: &[(usize, usize)]) -> Self {
        let width = forest.draft_blocks().map_or(forest.len(), |blocks| blocks.width).max(1);
        let mut chains: Vec<(u32, Vec<usize>)> = Vec::new();
        let mut last = None;
        for (index, &(_, row)) in wanted.iter().enumerate() {
            let block = (first + row) / width;
            if last != Some(block) {
                chains.push((forest.tokens()[block * width], Vec::new()));
                last = Some(block);
            }
            chains.last_mut().expect("a chain was begun").1.push(index);
        }
        Self { chains }
    }
}

/// One link of every chain that is this long: the bias of the token before, added and searched for the largest.
struct Link<'a> {
    plan: &'a Plan,
    markov: &'a Markov,
    /// Previous token and place of the logits, for each chain. `[rows]`
    rows: &'a [(u32, usize)],
    acts: Shared<'a, u8>,
    scratch: Shared<'a, f32>, // [rows, rank]
    logits: Shared<'a, f32>,
    largest: Shared<'a, Largest>, // [pieces, rows]
    pieces: usize,
    /// Values between the logits of neighbouring rows.
    stride: usize,
}

impl Region for Link<'_> {
    fn stages(&self) -> usize {
        2
    }

    fn pieces(&self, stage: usize) -> usize {
        if stage == 0 { 1 } else { self.pieces }
    }

    fn piece(&self, stage: usize, piece: usize, _: usize) {
        let isa = self.plan.isa;
        let weight = self.plan.weight(self.markov.weight);
        let layout = weight.matrix_layout();
        let acts = layout.act_layout(self.rows.len());
        if stage == 0 {
            // SAFETY: this stage has one piece.
            let scratch = unsafe { self.scratch.slice_mut(0..self.scratch.len()) };
            let rank = scratch.len() / self.rows.len();
            for (row, (&(token, _), x)) in self.rows.iter().zip(scratch.chunks_exact_mut(rank)).enumerate() {
                self.plan.weight(self.markov.table).row(token as usize, x);
                x.iter_mut().for_each(|x| *x *= self.markov.scale);
                // SAFETY: as above.
                unsafe { acts.write_row_shared(isa, row, x, self.acts) };
            }
            return;
        }
        let vocab = layout.n();
        let tiles = share_of(layout.tiles(), piece, self.pieces);
        let columns = tiles.start * layout.tile_rows()..(tiles.end * layout.tile_rows()).min(vocab);
        // SAFETY: an earlier stage wrote the activations.
        let acts = Acts::new(acts, unsafe { self.acts.slice(0..acts.bytes()) });
        let out = OutRows::shared(self.logits.starting_at(self.rows[0].1 * vocab), self.stride);
        // SAFETY: pieces have disjoint tiles, so disjoint columns of the logits.
        unsafe { weight.matrix().multiply_shared(acts, tiles, out, true, None) };
        for (row, &(_, place)) in self.rows.iter().enumerate() {
            // SAFETY: this piece has these columns of every row, and each (piece, row) has a place of its own.
            let (logits, cell) = unsafe {
                let place_of = piece * self.rows.len() + row;
                (
                    self.logits.slice(place * vocab + columns.start..place * vocab + columns.end),
                    self.largest.slice_mut(place_of..place_of + 1),
                )
            };
            cell[0] = elementwise::largest(isa, columns.start, logits);
        }
    }
}

/// Adds the biases of every chain to `logits` (`[wanted rows, head_size]`) and puts the new largest into `best`.
pub(super) fn run(
    plan: &Plan,
    markov: &Markov,
    chains: &Chains,
    logits: &mut [f32],
    best: &mut [Largest],
    (q8, f32): (&mut AlignedBytes, &mut AlignedBytes),
) -> Result<()> {
    let layout = plan.weight(markov.weight).matrix_layout();
    let (vocab, rank) = (layout.n(), plan.program.weight(markov.table).shape[1]);
    let acts = match layout.act_kind() {
        ActKind::Q8 => q8,
        ActKind::F32 => f32,
    };
    let pieces = layout.tiles().min(4 * plan.pool.threads());
    let longest = chains.chains.iter().map(|(_, rows)| rows.len()).max().unwrap_or(0);
    let mut previous: Vec<u32> = chains.chains.iter().map(|&(token, _)| token).collect();
    let (mut scratch, mut largest) = (Vec::new(), Vec::new());
    for link in 0..longest {
        // Chains of one length lie at equal distances, so that one product serves the link of all of them.
        let rows: Vec<(usize, (u32, usize))> = chains
            .chains
            .iter()
            .enumerate()
            .filter_map(|(chain, (_, rows))| Some((chain, (previous[chain], *rows.get(link)?))))
            .collect();
        for group in rows.chunk_by(|a, b| b.1.1 - a.1.1 == chains.chains[0].1.len()) {
            let places: Vec<(u32, usize)> = group.iter().map(|(_, row)| *row).collect();
            let stride = if places.len() > 1 { places[1].1 - places[0].1 } else { 1 } * vocab;
            acts.require(layout.act_layout(places.len()).bytes());
            scratch.resize(places.len() * rank, 0.0);
            largest.clear();
            largest.resize(pieces * places.len(), Largest::NONE);
            plan.pool.run(&Link {
                plan,
                markov,
                rows: &places,
                acts: Shared::new(acts.as_mut_slice()),
                scratch: Shared::new(&mut scratch),
                logits: Shared::new(logits),
                largest: Shared::new(&mut largest),
                pieces,
                stride,
            })?;
            for (row, &(chain, (_, place))) in group.iter().enumerate() {
                best[place] =
                    (0..pieces).fold(Largest::NONE, |best, piece| best.merge(largest[piece * places.len() + row]));
                let choice = best[place].index;
                previous[chain] = markov.ids.as_ref().map_or(choice as u32, |ids| ids[choice]);
            }
        }
    }
    Ok(())
}
