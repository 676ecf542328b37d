//! Writes a file beside its place and renames it when it is whole, so that no half file is ever seen.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use draftgauge_kernels::quant::QuantType;

use crate::error::{Error, Evidence, Result};
use crate::gguf::cursor::preview;
use crate::gguf::metadata::Metadata;
use crate::gguf::reader::{self, MAX_DIMS, MAX_NAME};
use crate::gguf::tensor_info::{TensorInfo, align_up, checked_bytes};
use crate::gguf::{GgufFile, encode, shards};

/// What will be written of one tensor; its data follows later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    name: String,
    type_id: u32,
    ty: Option<QuantType>,
    shape: Vec<u64>,
    nbytes: u64,
}

impl TensorSpec {
    /// A tensor of a known type; `shape` is row-major.
    ///
    /// # Errors
    /// `Error::Gguf` when the name or the number of dimensions is more than the format takes, a row is no whole number
    /// of blocks, or the size overflows.
    pub fn new(name: impl Into<String>, ty: QuantType, shape: &[u64]) -> Result<Self> {
        let name = name.into();
        let refuse = |what: &str, expected: String, found: String| {
            Err(Error::gguf(Evidence::new(what).tensor(preview(&name)).expected(expected).found(found)))
        };
        if name.len() > MAX_NAME {
            return refuse("tensor name is too long", format!("at most {MAX_NAME} bytes"), name.len().to_string());
        }
        if shape.len() > MAX_DIMS {
            return refuse("tensor has too many dimensions", format!("at most {MAX_DIMS}"), shape.len().to_string());
        }
        let Some(nbytes) = checked_bytes(ty, shape) else {
            return refuse(
                "tensor shape does not fit its type",
                format!("rows of a multiple of {} and fewer than 2^63 bytes for {ty}", ty.block_len()),
                format!("shape {shape:?}"),
            );
        };
        Ok(Self { name, type_id: ty.id(), ty: Some(ty), shape: shape.to_vec(), nbytes })
    }

    /// Name of the tensor.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of data that will follow.
    pub fn nbytes(&self) -> u64 {
        self.nbytes
    }
}

impl From<&TensorInfo> for TensorSpec {
    fn from(info: &TensorInfo) -> Self {
        Self {
            name: info.name.clone(),
            type_id: info.type_id,
            ty: info.ty,
            shape: info.shape.clone(),
            nbytes: info.nbytes,
        }
    }
}

/// A file in the making. Dropping it before [`Writer::finish`] removes what was written.
#[derive(Debug)]
pub struct Writer {
    // None once the file has its name.
    out: Option<BufWriter<File>>,
    beside: PathBuf,
    path: PathBuf,
    alignment: u64,
    tensors: Vec<TensorInfo>,
    // The tensor whose data comes next, and how much of it has come.
    current: usize,
    written: u64,
}

impl Writer {
    /// Writes the header of a version 3 file; the data of each tensor follows through [`Writer::write`].
    ///
    /// # Errors
    /// `Error::Gguf` when names repeat, a key is empty or `general.alignment` is not a power of two; `Error::Io` when
    /// the system refuses.
    pub fn create(path: impl AsRef<Path>, metadata: &Metadata, tensors: &[TensorSpec]) -> Result<Self> {
        Self::create_version(path, 3, metadata, tensors)
    }

    /// As [`Writer::create`], for a file of version 2 or 3.
    ///
    /// # Errors
    /// As [`Writer::create`].
    pub fn create_version(
        path: impl AsRef<Path>,
        version: u32,
        metadata: &Metadata,
        tensors: &[TensorSpec],
    ) -> Result<Self> {
        let path = path.as_ref();
        if !matches!(version, 2 | 3) {
            return Err(Error::argument(
                Evidence::new("cannot write this GGUF version").path(path).expected("2 or 3").found(version),
            ));
        }
        if metadata.contains("") {
            return Err(Error::gguf(Evidence::new("metadata key is empty").path(path)));
        }
        let alignment = u64::from(reader::alignment(metadata)?);
        let tensors = lay_out(path, alignment, tensors)?;
        let header = encode::header(version, metadata, &tensors);
        let header_padding = if tensors.is_empty() { 0 } else { padding(header.len() as u64, alignment) };
        let (file, beside) = create_beside(path)?;
        let mut writer = Self {
            out: Some(BufWriter::with_capacity(1 << 20, file)),
            beside,
            path: path.to_path_buf(),
            alignment,
            tensors,
            current: 0,
            written: 0,
        };
        writer.put(&header)?;
        writer.put_zeros(header_padding)?;
        writer.pass_complete_tensors()?;
        Ok(writer)
    }

    /// The tensors with their offsets.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor whose data comes next, and how many of its bytes have come; `None` when all are there.
    pub fn current(&self) -> Option<(&TensorInfo, u64)> {
        self.tensors.get(self.current).map(|info| (info, self.written))
    }

    /// Takes the next bytes of the current tensor: all of them or a part.
    ///
    /// # Errors
    /// `Error::Gguf` when there are more bytes than the tensor has left.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        let left = self.current().map_or(0, |(info, written)| info.nbytes - written);
        if data.len() as u64 > left {
            let name = self.current().map_or("after the last tensor", |(info, _)| info.name.as_str());
            return Err(Error::gguf(
                Evidence::new("too much tensor data")
                    .path(&self.path)
                    .tensor(preview(name))
                    .expected(format!("at most {left} bytes"))
                    .found(data.len()),
            ));
        }
        self.put(data)?;
        self.written += data.len() as u64;
        self.pass_complete_tensors()
    }

    /// Pads the last tensor, syncs the file and gives it its name.
    ///
    /// # Errors
    /// `Error::Gguf` when data is missing, `Error::Io` when the system refuses; the file is removed then.
    pub fn finish(mut self) -> Result<()> {
        self.require_complete()?;
        let padding = self.tensors.last().map_or(0, |info| padding(info.nbytes, self.alignment));
        self.put_zeros(padding)?;
        self.publish()
    }

    /// As [`Writer::finish`], with these bytes after the last tensor's data instead of the usual padding.
    ///
    /// # Errors
    /// As [`Writer::finish`].
    pub fn finish_with(mut self, tail: &[u8]) -> Result<()> {
        self.require_complete()?;
        self.put(tail)?;
        self.publish()
    }

    fn require_complete(&self) -> Result<()> {
        if let Some((info, written)) = self.current() {
            return Err(Error::gguf(
                Evidence::new("tensor data is missing")
                    .path(&self.path)
                    .tensor(preview(&info.name))
                    .expected(format!("{} bytes", info.nbytes))
                    .found(format!("{written} bytes")),
            ));
        }
        Ok(())
    }

    fn publish(mut self) -> Result<()> {
        let synced = self.out.take().map(|out| match out.into_inner() {
            Ok(file) => file.sync_all(),
            Err(error) => Err(error.into_error()),
        });
        let renamed = synced.unwrap_or(Ok(())).and_then(|()| fs::rename(&self.beside, &self.path));
        if let Err(error) = renamed {
            // `out` is gone, so dropping would leave the file.
            let _ = fs::remove_file(&self.beside);
            return Err(Error::io(&self.path, error));
        }
        sync_folder(&self.path);
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.out {
            Some(out) => out.write_all(bytes).map_err(|error| Error::io(&self.path, error)),
            None => Ok(()),
        }
    }

    /// Padding can be as large as an alignment that a file asks for, so it is not allocated.
    fn put_zeros(&mut self, count: u64) -> Result<()> {
        match &mut self.out {
            Some(out) => std::io::copy(&mut std::io::repeat(0).take(count), out)
                .map(|_| ())
                .map_err(|error| Error::io(&self.path, error)),
            None => Ok(()),
        }
    }

    /// Moves past tensors that are whole, padding each but the last: what follows that is the end's business.
    fn pass_complete_tensors(&mut self) -> Result<()> {
        while let Some(info) = self.tensors.get(self.current)
            && info.nbytes == self.written
        {
            let padding = padding(info.nbytes, self.alignment);
            self.current += 1;
            self.written = 0;
            if self.current < self.tensors.len() {
                self.put_zeros(padding)?;
            }
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.out.take().is_some() {
            let _ = fs::remove_file(&self.beside);
        }
    }
}

fn padding(nbytes: u64, alignment: u64) -> u64 {
    nbytes.next_multiple_of(alignment) - nbytes
}

/// Gives every tensor the offset that readers expect: the sum of the padded sizes before it.
fn lay_out(path: &Path, alignment: u64, specs: &[TensorSpec]) -> Result<Vec<TensorInfo>> {
    let mut names = std::collections::HashSet::new();
    let mut offset = 0u64;
    let mut tensors = Vec::with_capacity(specs.len());
    for spec in specs {
        let refuse = |what: &str| Error::gguf(Evidence::new(what).path(path).tensor(preview(&spec.name)));
        if !names.insert(spec.name.as_str()) {
            return Err(refuse("tensor name occurs twice"));
        }
        let end = offset.checked_add(spec.nbytes).and_then(|end| align_up(end, alignment));
        tensors.push(TensorInfo {
            name: spec.name.clone(),
            type_id: spec.type_id,
            ty: spec.ty,
            shape: spec.shape.clone(),
            offset,
            nbytes: spec.nbytes,
            shard: 0,
        });
        offset = end.filter(|&end| end < 1 << 63).ok_or_else(|| refuse("tensor sizes add up to too much"))?;
    }
    Ok(tensors)
}

/// A new file in the folder of `path`, with a name that nobody else takes.
fn create_beside(path: &Path) -> Result<(File, PathBuf)> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    // Renaming onto a device would replace it.
    let replaces_other = fs::metadata(path).is_ok_and(|there| !there.is_file());
    if path.file_name().is_none() || replaces_other {
        return Err(Error::argument(
            Evidence::new("cannot write here").path(path).expected("a file's path").found("a folder or device"),
        ));
    }
    loop {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        // Not made from the file's own name, which may be as long as names can be.
        let beside = path.with_file_name(format!(".draftgauge-{}-{number}.tmp", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&beside) {
            Ok(file) => return Ok((file, beside)),
            // Left by a process that was killed and had this one's id.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io(path, error)),
        }
    }
}

/// Makes the rename durable where the system allows it; the file itself is safe already.
fn sync_folder(path: &Path) {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

/// Writes metadata and whole tensors in one go.
///
/// `general.alignment`, where present, sets the alignment. Keys of a split set (`split.*`) are left out, since the
/// result is one file.
///
/// # Errors
/// As [`Writer::create`], and `Error::Gguf` when data has not the bytes that its tensor needs.
pub fn write<'a>(
    path: impl AsRef<Path>,
    metadata: &Metadata,
    tensors: impl IntoIterator<Item = (TensorSpec, &'a [u8])>,
) -> Result<()> {
    write_version(path, 3, metadata, tensors)
}

/// As [`write`], for a file of version 2 or 3.
///
/// # Errors
/// As [`write`].
pub fn write_version<'a>(
    path: impl AsRef<Path>,
    version: u32,
    metadata: &Metadata,
    tensors: impl IntoIterator<Item = (TensorSpec, &'a [u8])>,
) -> Result<()> {
    let (specs, data): (Vec<_>, Vec<_>) = tensors.into_iter().unzip();
    let mut writer = Writer::create_version(path, version, &whole(metadata), &specs)?;
    write_all(&mut writer, &specs, &data)?;
    writer.finish()
}

fn write_all(writer: &mut Writer, specs: &[TensorSpec], data: &[&[u8]]) -> Result<()> {
    for (spec, data) in specs.iter().zip(data) {
        if data.len() as u64 != spec.nbytes {
            return Err(Error::gguf(
                Evidence::new("tensor data has the wrong size")
                    .path(&writer.path)
                    .tensor(preview(&spec.name))
                    .expected(format!("{} bytes", spec.nbytes))
                    .found(data.len()),
            ));
        }
        writer.write(data)?;
    }
    Ok(())
}

/// Metadata for a file that stands alone.
fn whole(metadata: &Metadata) -> Metadata {
    let mut copy = metadata.clone();
    if metadata.u16(shards::SPLIT_COUNT).ok().flatten().is_some_and(|count| count > 1) {
        for key in [shards::SPLIT_NO, shards::SPLIT_COUNT, shards::SPLIT_TENSORS] {
            copy.remove(key);
        }
    }
    copy
}

impl GgufFile {
    /// Writes the file again, byte for byte; a set of shards becomes one file.
    ///
    /// # Errors
    /// `Error::Gguf` when data lies past the end of the file, `Error::Io` when the system refuses.
    pub fn write_to(&self, path: impl AsRef<Path>) -> Result<()> {
        let specs: Vec<TensorSpec> = self.tensors.iter().map(TensorSpec::from).collect();
        let data = self.tensors.iter().map(|info| self.extent_bytes(info)).collect::<Result<Vec<_>>>()?;
        let mut writer = Writer::create_version(path, self.version, &whole(&self.metadata), &specs)?;
        write_all(&mut writer, &specs, &data)?;
        if self.sections.len() == 1 { writer.finish_with(self.tail()) } else { writer.finish() }
    }

    /// What a file has after the data of its last tensor: padding, as a rule.
    fn tail(&self) -> &[u8] {
        let Some(section) = self.sections.first() else { return &[] };
        let end = self.tensors.iter().filter(|info| info.nbytes > 0).map(|info| info.offset + info.nbytes).max();
        section.bytes().get((section.start + end.unwrap_or(0)) as usize..).unwrap_or_default()
    }
}
