//! The Markov head: a bias from the token before, chained along the requested rows of each draft block.

use std::cmp::Ordering;
use std::ops::Range;

use draftgauge_kernels::elementwise::{self, Largest};
use draftgauge_kernels::matmul::{ActKind, ActLayout, Acts, OutRows};
use draftgauge_kernels::shared::Shared;

use super::aligned::AlignedBytes;
use super::plan::{Markov, Plan};
use super::pool::Region;
use super::run::share_of;
use crate::backend::Forest;
use crate::error::Result;

/// What rounding and quantized activations may add to a bias beyond its bound.
const SLACK: f32 = 1.05;

/// The requested rows as chains, one a draft block.
pub(super) struct Chains {
    /// First token of each chain's block.
    anchors: Vec<u32>,
    /// For each link, the chains that are this long with the places of their rows among those of the chunk.
    links: Vec<Vec<(usize, usize)>>,
}

impl Chains {
    /// The chains among `wanted`, (place in the request, row of the chunk), of a chunk that begins at row `first`.
    pub(super) fn new(forest: &Forest, first: usize, wanted: &[(usize, usize)]) -> Self {
        let width = forest.draft_blocks().map_or(forest.len(), |blocks| blocks.width).max(1);
        let mut chains = Self { anchors: Vec::new(), links: Vec::new() };
        let mut last = None;
        let mut link = 0;
        for (place, &(_, row)) in wanted.iter().enumerate() {
            let block = (first + row) / width;
            if last != Some(block) {
                chains.anchors.push(forest.tokens()[block * width]);
                last = Some(block);
                link = 0;
            }
            if chains.links.len() == link {
                chains.links.push(Vec::new());
            }
            chains.links[link].push((chains.anchors.len() - 1, place));
            link += 1;
        }
        chains
    }
}

/// Every link of every chain in one region, two stages a link: what the links before chose becomes activations, and
/// their product is added to the logits and searched for the largest.
struct Walk<'a> {
    plan: &'a Plan,
    markov: &'a Markov,
    chains: &'a Chains,
    previous: Shared<'a, u32>, // [chains]
    norms: Shared<'a, f32>,    // [chains]: of the embedded previous token
    /// Whether the largest alone are wanted: tiles that cannot hold them are left out.
    sparse: bool,
    acts: Shared<'a, u8>,
    scratch: Shared<'a, f32>, // [rank]
    logits: Shared<'a, f32>,
    largest: Shared<'a, Largest>, // [pieces, chains]
    best: Shared<'a, Largest>,    // [wanted rows]
    pieces: usize,
}

impl Region for Walk<'_> {
    fn stages(&self) -> usize {
        2 * self.chains.links.len() + 1
    }

    fn pieces(&self, stage: usize) -> usize {
        if stage.is_multiple_of(2) { 1 } else { self.pieces }
    }

    fn piece(&self, stage: usize, piece: usize, _: usize) {
        let link = stage / 2;
        if stage.is_multiple_of(2) {
            if let Some(before) = link.checked_sub(1) {
                self.choose(&self.chains.links[before]);
            }
            if let Some(rows) = self.chains.links.get(link) {
                self.activate(rows);
            }
        } else {
            self.multiply(&self.chains.links[link], piece);
        }
    }
}

impl Walk<'_> {
    /// Activations of one row alone: each chain's are multiplied by themselves unless all chains have equal distances.
    fn layout(&self, rows: usize) -> ActLayout {
        self.plan.weight(self.markov.weight).matrix_layout().act_layout(rows)
    }

    /// Puts the largest of a link's rows together, and what they stand for.
    fn choose(&self, rows: &[(usize, usize)]) {
        let chains = self.chains.anchors.len();
        for &(chain, place) in rows {
            // SAFETY: this stage has one piece, and the stage that wrote the largest is over.
            let (best, previous, largest) = unsafe {
                (
                    self.best.slice_mut(place..place + 1),
                    self.previous.slice_mut(chain..chain + 1),
                    self.largest.slice(0..self.pieces * chains),
                )
            };
            best[0] = (0..self.pieces).fold(Largest::NONE, |best, piece| best.merge(largest[piece * chains + chain]));
            let choice = best[0].index;
            previous[0] = self.markov.ids.as_ref().map_or(choice as u32, |ids| ids[choice]);
        }
    }

    fn activate(&self, rows: &[(usize, usize)]) {
        let acts = self.layout(rows.len());
        for (row, &(chain, _)) in rows.iter().enumerate() {
            // SAFETY: this stage has one piece.
            unsafe {
                let x = self.scratch.slice_mut(0..self.scratch.len());
                let token = self.previous.slice(chain..chain + 1)[0];
                self.plan.weight(self.markov.table).row(token as usize, x);
                x.iter_mut().for_each(|x| *x *= self.markov.scale);
                let norm = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt() as f32;
                self.norms.slice_mut(chain..chain + 1)[0] = norm;
                acts.write_row_shared(self.plan.isa, row, x, self.acts);
            }
        }
    }

    fn multiply(&self, rows: &[(usize, usize)], piece: usize) {
        let layout = self.plan.weight(self.markov.weight).matrix_layout();
        let tiles = share_of(layout.tiles(), piece, self.pieces);
        let mut best = vec![Largest::NONE; rows.len()];
        if self.sparse {
            self.multiply_some(rows, tiles, &mut best);
        } else {
            self.multiply_tiles(rows, tiles, &mut best);
        }
        for (&(chain, _), best) in rows.iter().zip(best) {
            let cell = piece * self.chains.anchors.len() + chain;
            // SAFETY: each (piece, chain) has a place of its own.
            unsafe { self.largest.slice_mut(cell..cell + 1)[0] = best };
        }
    }

    /// Tiles one by one, without those whose largest logit and largest possible bias do not reach the second best.
    fn multiply_some(&self, rows: &[(usize, usize)], tiles: Range<usize>, best: &mut [Largest]) {
        let layout = self.plan.weight(self.markov.weight).matrix_layout();
        let columns = tiles.start * layout.tile_rows()..(tiles.end * layout.tile_rows()).min(layout.n());
        let mut highest = vec![0.0; rows.len() * tiles.len()]; // [rows, tiles]
        let mut done = Vec::with_capacity(rows.len());
        for (&(_, place), highest) in rows.iter().zip(highest.chunks_exact_mut(tiles.len().max(1))) {
            let start = place * layout.n();
            // SAFETY: this piece has these columns of every row.
            let logits = unsafe { self.logits.slice(start + columns.start..start + columns.end) };
            elementwise::highest(self.plan.isa, layout.tile_rows(), logits, highest);
            done.extend((0..tiles.len()).max_by(|&a, &b| highest[a].total_cmp(&highest[b])));
        }
        done.sort_unstable();
        done.dedup();
        for &tile in &done {
            let tile = tiles.start + tile;
            self.multiply_tiles(rows, tile..tile + 1, best);
        }
        for tile in (0..tiles.len()).filter(|tile| !done.contains(tile)) {
            let matters = rows.iter().enumerate().any(|(row, &(chain, _))| {
                // SAFETY: an earlier stage wrote the norms.
                let norm = unsafe { self.norms.slice(chain..chain + 1)[0] };
                let bias = SLACK * norm * self.markov.norms[tiles.start + tile];
                // What cannot be compared matters.
                let most = highest[row * tiles.len() + tile] + bias;
                most.partial_cmp(&best[row].second) != Some(Ordering::Less)
            });
            if matters {
                self.multiply_tiles(rows, tiles.start + tile..tiles.start + tile + 1, best);
            }
        }
    }

    /// Adds the biases of some tiles, and takes their largest into `best`.
    fn multiply_tiles(&self, rows: &[(usize, usize)], tiles: Range<usize>, best: &mut [Largest]) {
        let weight = self.plan.weight(self.markov.weight);
        let layout = weight.matrix_layout();
        let vocab = layout.n();
        let columns = tiles.start * layout.tile_rows()..(tiles.end * layout.tile_rows()).min(vocab);
        let acts = self.layout(rows.len());
        // SAFETY: an earlier stage wrote the activations; pieces have disjoint tiles, so disjoint columns of the logits.
        unsafe {
            let acts = Acts::new(acts, self.acts.slice(0..acts.bytes()));
            // Rows of one link lie a block of requested rows apart.
            let apart = rows.get(1).map_or(1, |second| second.1 - rows[0].1);
            let out = OutRows::shared(self.logits.starting_at(rows[0].1 * vocab), apart * vocab);
            weight.matrix().multiply_shared(acts, tiles, out, true, None);
            for (&(_, place), best) in rows.iter().zip(best) {
                let logits = self.logits.slice(place * vocab + columns.start..place * vocab + columns.end);
                let found = elementwise::largest(self.plan.isa, columns.start, logits);
                // Of equals the lowest row wins, in whatever order tiles come.
                *best = if found.index < best.index { found.merge(*best) } else { best.merge(found) };
            }
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
    sparse: bool,
) -> Result<()> {
    let equal = chains.links.iter().all(|link| link.len() == chains.anchors.len());
    if !equal && chains.anchors.len() > 1 {
        // Chains of different lengths lie at different distances: one after the other.
        for chain in 0..chains.anchors.len() {
            let links = chains.links.iter().map_while(|link| link.iter().find(|(c, _)| *c == chain));
            let alone = Chains {
                anchors: vec![chains.anchors[chain]],
                links: links.map(|&(_, place)| vec![(0, place)]).collect(),
            };
            run(plan, markov, &alone, logits, best, (&mut *q8, &mut *f32), sparse)?;
        }
        return Ok(());
    }
    let layout = plan.weight(markov.weight).matrix_layout();
    let acts = match layout.act_kind() {
        ActKind::Q8 => q8,
        ActKind::F32 => f32,
    };
    let pieces = layout.tiles().min(2 * plan.pool.threads());
    acts.require(layout.act_layout(chains.anchors.len()).bytes());
    let mut previous = chains.anchors.clone();
    let mut norms = vec![0.0; previous.len()];
    let mut scratch = vec![0.0; plan.program.weight(markov.table).shape[1]];
    let mut largest = vec![Largest::NONE; pieces * chains.anchors.len()];
    plan.pool.run(&Walk {
        plan,
        markov,
        chains,
        previous: Shared::new(&mut previous),
        norms: Shared::new(&mut norms),
        sparse,
        acts: Shared::new(acts.as_mut_slice()),
        scratch: Shared::new(&mut scratch),
        logits: Shared::new(logits),
        largest: Shared::new(&mut largest),
        best: Shared::new(best),
        pieces,
    })
}
