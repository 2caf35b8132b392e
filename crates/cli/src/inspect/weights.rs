//! Where a model's packed weights are: by part and type, and what of them a token needs, in memory or from storage.

use std::fmt;

use dsv41_config::{Config, Part};
use dsv41_gguf::PartSize;
use serde_json::{Value, json};

use super::Options;
use crate::table::{Align, Table, bytes, grouped};

/// The packed weights of a model, in a file or planned. Displayed as two tables: tensors and memory.
#[derive(Debug, Clone)]
pub struct Weights {
    sizes: Vec<PartSize>,
    split: Split,
    plan: Option<MemoryPlan>,
}

/// What is in memory always, and what may be read when a token needs it. All sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Split {
    /// What every token uses: all of the model but routed experts and engram tables.
    resident: u64,
    /// All routed experts.
    experts: u64,
    expert_count: u64,
    /// Experts that one token goes to, in all layers.
    activated: u64,
    /// All engram tables.
    tables: u64,
    /// Engram rows that one token reads.
    rows: u64,
    row_bytes: u64,
}

/// What is read from storage for a token where so much memory is given.
#[derive(Debug, Clone, Copy, PartialEq)]
struct MemoryPlan {
    /// Bytes for weights.
    memory: u64,
    /// None where the memory does not hold what every token uses.
    streaming: Option<Streaming>,
    /// Bytes that the storage gives in a second, if that is known.
    storage_speed: Option<u64>,
}

/// Experts kept in memory, and what is read besides, if all experts are chosen equally often.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Streaming {
    experts_kept: u64,
    /// Bytes of experts, on average.
    expert_bytes_read: f64,
    /// Bytes of engram rows.
    row_bytes_read: u64,
}

impl Weights {
    /// The weights of `config` that take these sizes, with as much memory as `options` give.
    pub fn new(config: &Config, sizes: Vec<PartSize>, options: &Options) -> Self {
        let split = Split::new(config, &sizes);
        let plan = options.memory.map(|memory| MemoryPlan {
            memory: memory.as_u64(),
            streaming: split.streaming(memory.as_u64()),
            storage_speed: options.storage_speed.map(|speed| speed.as_u64()),
        });
        Self { sizes, split, plan }
    }

    /// Bytes of all tensors, without padding.
    pub(super) fn bytes(&self) -> u64 {
        sum(&self.sizes, |_| true)
    }

    /// `tensors` by part and type, and `memory`. What does not apply is null.
    pub(super) fn to_json(&self) -> Value {
        let tensors: Vec<Value> = self
            .sizes
            .iter()
            .map(|size| {
                json!({
                    "part": size.part.map(|part| part.to_string()),
                    "type": size.ty.name(),
                    "tensors": size.tensors,
                    "bytes": size.bytes,
                })
            })
            .collect();
        let split = &self.split;
        json!({
            "tensors": tensors,
            "bytes": self.bytes(),
            "memory": {
                "resident_bytes": split.resident,
                "experts": split.expert_count,
                "expert_bytes": split.expert_bytes(),
                "all_expert_bytes": split.experts,
                "experts_per_token": split.activated,
                "engram_table_bytes": split.tables,
                "engram_rows_per_token": split.rows,
                "engram_row_bytes_per_token": split.row_bytes,
                "plan": self.plan.map(MemoryPlan::to_json),
            },
        })
    }

    fn tensors(&self) -> Table<4> {
        let mut table = Table::new([Align::Left, Align::Left, Align::Right, Align::Right]);
        table.row(["part", "type", "tensors", "size"]);
        for size in &self.sizes {
            let part = size.part.map_or("not of the text model".to_owned(), |part| part.to_string());
            table.row([part, size.ty.name().to_owned(), size.tensors.to_string(), bytes(size.bytes)]);
        }
        let tensors: usize = self.sizes.iter().map(|size| size.tensors).sum();
        table.row(["total".to_owned(), String::new(), tensors.to_string(), bytes(self.bytes())]);
        table
    }

    fn memory(&self) -> Table<3> {
        let mut table = Table::new([Align::Left, Align::Right, Align::Left]);
        let mut row = |label: &str, size: u64, note: String| table.row([label.to_owned(), bytes(size), note]);
        let split = &self.split;
        row("resident", split.resident, "used by every token".to_owned());
        row(
            "routed experts",
            split.experts,
            format!(
                "{} of {} each; a token goes to {}",
                grouped(split.expert_count),
                bytes(split.expert_bytes() as u64),
                split.activated
            ),
        );
        row(
            "engram tables",
            split.tables,
            format!("a token reads {} rows, {} in all", split.rows, bytes(split.row_bytes)),
        );
        if let Some(plan) = &self.plan {
            plan.rows(split, &mut row);
        }
        table
    }
}

impl Split {
    fn new(config: &Config, sizes: &[PartSize]) -> Self {
        let of = |part| sum(sizes, |size| size.part == Some(part));
        let (experts, tables) = (of(Part::RoutedExperts), of(Part::EngramTables));
        let in_model = sum(sizes, |size| size.part.is_some());
        let layers = config.n_layers as u64;
        let slots = config.engram_slots() as u64;
        let engram = sizes.iter().filter(|size| size.part == Some(Part::EngramTables));
        // A table whose rows had no size in its type could not have been laid out or opened.
        let row_bytes = engram.map(|size| {
            let row = size.ty.row_bytes(config.engram_head_dim).unwrap_or_default() as u64;
            size.tensors as u64 * slots * row
        });
        Self {
            resident: in_model.saturating_sub(experts).saturating_sub(tables),
            experts,
            expert_count: layers * config.n_routed_experts as u64,
            activated: layers * config.n_activated_experts as u64,
            tables,
            rows: slots * config.engram_layer_ids.len() as u64,
            row_bytes: row_bytes.sum(),
        }
    }

    /// Bytes of one expert, on average over the layers. A valid configuration has experts.
    fn expert_bytes(&self) -> f64 {
        self.experts as f64 / self.expert_count as f64
    }

    fn streaming(&self, memory: u64) -> Option<Streaming> {
        let left = memory.checked_sub(self.resident)?;
        let fit = (left as f64 / self.expert_bytes()) as u64;
        let experts_kept = fit.min(self.expert_count);
        let missing = (self.expert_count - experts_kept) as f64 / self.expert_count as f64;
        Some(Streaming {
            experts_kept,
            expert_bytes_read: self.activated as f64 * self.expert_bytes() * missing,
            row_bytes_read: self.row_bytes,
        })
    }
}

impl MemoryPlan {
    fn rows(&self, split: &Split, row: &mut impl FnMut(&str, u64, String)) {
        let Some(streaming) = &self.streaming else {
            let lacking = split.resident.saturating_sub(self.memory);
            row("memory", self.memory, format!("too little: {} more for what every token uses", bytes(lacking)));
            return;
        };
        let kept = streaming.experts_kept;
        let percent = 100.0 * kept as f64 / split.expert_count as f64;
        row(
            "memory",
            self.memory,
            format!("holds what is resident and {} experts ({percent:.1}% of all)", grouped(kept)),
        );
        row(
            "read for a token",
            streaming.bytes_read() as u64,
            format!(
                "{} of experts, if all are chosen equally often, and {} of engram rows",
                bytes(streaming.expert_bytes_read as u64),
                bytes(streaming.row_bytes_read)
            ),
        );
        if let Some(speed) = self.storage_speed {
            let note = match streaming.tokens_per_second(speed) {
                Some(rate) => format!("in a second: at most {} tokens a second", significant(rate)),
                None => "in a second: nothing is read, so that it sets no limit".to_owned(),
            };
            row("storage", speed, note);
        }
    }

    fn to_json(self) -> Value {
        let streaming = self.streaming.map(|streaming| {
            json!({
                "experts_kept": streaming.experts_kept,
                "expert_bytes_read_per_token": streaming.expert_bytes_read,
                "bytes_read_per_token": streaming.bytes_read(),
                "tokens_per_second": self.storage_speed.and_then(|speed| streaming.tokens_per_second(speed)),
            })
        });
        json!({ "memory_bytes": self.memory, "storage_bytes_per_second": self.storage_speed, "streaming": streaming })
    }
}

impl Streaming {
    fn bytes_read(&self) -> f64 {
        self.expert_bytes_read + self.row_bytes_read as f64
    }

    /// The tokens that so many bytes a second are enough for; none where no token reads anything.
    fn tokens_per_second(&self, storage_speed: u64) -> Option<f64> {
        let read = self.bytes_read();
        (read > 0.0).then(|| storage_speed as f64 / read)
    }
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "TENSORS\n{}\n", self.tensors())?;
        writeln!(f, "MEMORY\n{}", self.memory())
    }
}

/// Bytes of those that count.
fn sum(sizes: &[PartSize], counts: impl Fn(&PartSize) -> bool) -> u64 {
    sizes.iter().filter(|size| counts(size)).fold(0, |sum, size| sum.saturating_add(size.bytes))
}

/// A rate with two digits behind the point, or none where it is large.
fn significant(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.2}") } else { grouped(rate as u64) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bytesize::ByteSize;
    use dsv41_gguf::{Layout, TypePlan};
    use dsv41_quant::GgmlType;

    use super::*;

    fn weights(name: &str, plan: TypePlan, options: &Options) -> Weights {
        let path = format!("{}/../../configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let config = Config::load(Path::new(&path)).unwrap();
        let layout = Layout::new(&config.tensors(), &plan).unwrap();
        Weights::new(&config, layout.sizes(), options)
    }

    fn with_memory(memory: u64) -> Options {
        Options { memory: Some(ByteSize(memory)), storage_speed: Some(ByteSize(1_000_000)), ..Options::default() }
    }

    /// By hand: 6 layers of 4 experts of three 64 x 24 matrices, of which a token goes to 2; 2 tables of 462 and 630 rows
    /// of 32, of which it reads 2 heads' for 3 sizes of n-grams each.
    #[test]
    fn a_small_model_is_split_by_what_a_token_needs() {
        let all = weights("tiny", TypePlan::uniform(GgmlType::F32), &Options::default());
        let (expert, row) = (3 * 64 * 24 * 4, 32 * 4);
        let expected = Split {
            resident: all.bytes() - 24 * expert - 1_092 * row,
            experts: 24 * expert,
            expert_count: 24,
            activated: 12,
            tables: 1_092 * row,
            rows: 12,
            row_bytes: 12 * row,
        };
        assert_eq!(all.split, expected);
        assert_eq!(all.plan, None);
    }

    /// With a quarter of the experts in memory, three of four that a token goes to are read.
    #[test]
    fn what_does_not_fit_is_read() {
        let plan = TypePlan::uniform(GgmlType::F32);
        let split = weights("tiny", plan, &Options::default()).split;
        let expert = split.expert_bytes();
        let memory = split.resident + 6 * expert as u64 + 1;
        let found = weights("tiny", plan, &with_memory(memory)).plan.unwrap();
        let read = 12.0 * 0.75 * expert;
        let expected = Streaming { experts_kept: 6, expert_bytes_read: read, row_bytes_read: 12 * 128 };
        assert_eq!(found.streaming, Some(expected));
        assert_eq!(expected.tokens_per_second(1_000_000), Some(1e6 / (read + 1_536.0)));
    }

    #[test]
    fn with_all_experts_in_memory_only_rows_are_read() {
        let plan = weights("tiny", TypePlan::PUBLISHED, &with_memory(u64::MAX)).plan.unwrap();
        let streaming = plan.streaming.unwrap();
        assert_eq!((streaming.experts_kept, streaming.expert_bytes_read), (24, 0.0));
        assert_eq!(streaming.bytes_read(), streaming.row_bytes_read as f64);
        assert_eq!(Streaming { row_bytes_read: 0, ..streaming }.tokens_per_second(1), None);
    }

    #[test]
    fn memory_that_holds_no_token_is_too_little() {
        let resident = weights("tiny", TypePlan::PUBLISHED, &Options::default()).split.resident;
        let short = weights("tiny", TypePlan::PUBLISHED, &with_memory(resident - 1));
        assert!(short.to_string().contains("too little: 1 B more for what every token uses"), "{short}");
        assert_eq!(short.to_json()["memory"]["plan"]["streaming"], Value::Null);
        let enough = weights("tiny", TypePlan::PUBLISHED, &with_memory(resident)).plan.unwrap();
        assert_eq!(enough.streaming.map(|streaming| streaming.experts_kept), Some(0));
    }

    /// The figures of the published seven shards.
    #[test]
    fn the_published_file_has_the_published_sizes() {
        let published = weights("v4.1-flash", TypePlan::PUBLISHED, &Options::default());
        let text = published.to_string();
        for (part, ty, size) in [
            ("routed experts", "q2_k", "110.7 GiB"),
            ("routed experts", "q3_k", "72.5 GiB"),
            ("engram tables", "q2_k", "60.1 GiB"),
        ] {
            let found = text
                .lines()
                .any(|line| line.trim_start().starts_with(part) && line.contains(ty) && line.ends_with(size));
            assert!(found, "{part} {ty} {size} in\n{text}");
        }
        assert_eq!(ByteSize(published.bytes()).display().si().to_string(), "264.5 GB");
        let split = published.split;
        assert_eq!((split.expert_count, bytes(split.expert_bytes() as u64)), (15_360, "12.2 MiB".to_owned()));
        assert_eq!(split.resident + split.experts + split.tables, published.bytes());
    }
}
