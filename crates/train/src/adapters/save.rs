//! Writing an adapter's folder.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use burn::tensor::{DType, TensorData};
use dsv41::{LowRank, ModelBackend, Transformer};
use safetensors::{Dtype, tensor::TensorView};

use super::{
    AdapterError, AdapterSettings, Base,
    config_file::{self, CONFIG},
    file::{TENSORS, tensor_names},
    targets,
};
use crate::run::durable;

/// Writes the last adapter of every linear layer that the settings' targets match to a folder, in f32. The folder is whole
/// once it has its name; an adapter that was there is replaced, and stays until the new one is on disk.
///
/// # Errors
/// [`AdapterError::Adapter`] when the model's adapters are not what the settings say, [`AdapterError::NoAdapter`] when
/// the folder holds something else, [`AdapterError::Io`].
pub fn save<B: ModelBackend>(
    folder: &Path,
    model: &Transformer<B>,
    settings: &AdapterSettings,
    base: &Base,
) -> Result<(), AdapterError> {
    let tensors = stored(model, settings)?;
    check_replaceable(folder)?;
    let partial = durable::partial(folder);
    let written = write(&partial, &tensors, settings, base).and_then(|()| put_in_place(&partial, folder));
    if written.is_err() {
        // What went wrong already is what the caller needs to know.
        let _ = fs::remove_dir_all(&partial);
    }
    written.map_err(AdapterError::io(folder, "written"))
}

/// The tensors of the file by name.
fn stored<B: ModelBackend>(
    model: &Transformer<B>,
    settings: &AdapterSettings,
) -> Result<Vec<(String, TensorData)>, AdapterError> {
    settings.validate()?;
    let linears: HashMap<&str, _> = model.linears().into_iter().map(|linear| (linear.name(), linear)).collect();
    let mut tensors = Vec::new();
    for target in targets::chosen(model.config(), &settings.targets)? {
        let adapter = linears.get(target.linear.as_str()).and_then(|linear| linear.adapters.last());
        let adapter = checked(adapter, &target.linear, settings)?;
        let [of_a, of_b] = adapter.parameters(&target.linear);
        let values = [of_a.to_stored(adapter.a.val()), of_b.to_stored(adapter.b.val())];
        tensors.extend(tensor_names(&target.linear).into_iter().zip(values.map(|data| data.convert_dtype(DType::F32))));
    }
    Ok(tensors)
}

/// The adapter, if it is as the settings say.
fn checked<'a, B: ModelBackend>(
    adapter: Option<&'a LowRank<B>>,
    linear: &str,
    settings: &AdapterSettings,
) -> Result<&'a LowRank<B>, AdapterError> {
    let said = |rank: usize, scale: f64| format!("an adapter of rank {rank} with scale {scale}");
    let found = adapter.map(|adapter| (adapter.a.dims()[1], adapter.scale()));
    match adapter {
        Some(adapter) if found == Some((settings.rank, settings.scale())) => Ok(adapter),
        _ => Err(AdapterError::Adapter {
            linear: linear.to_owned(),
            found: found.map_or_else(|| "no adapter".to_owned(), |(rank, scale)| said(rank, scale)),
            expected: said(settings.rank, settings.scale()),
        }),
    }
}

/// Passes a folder that holds an adapter, or nothing, or is not there.
fn check_replaceable(folder: &Path) -> Result<(), AdapterError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(AdapterError::io(folder, "listed"))?,
    };
    match entries.count() == 0 || folder.join(CONFIG).exists() {
        true => Ok(()),
        false => Err(AdapterError::NoAdapter { folder: folder.to_owned() }),
    }
}

fn write(folder: &Path, tensors: &[(String, TensorData)], settings: &AdapterSettings, base: &Base) -> io::Result<()> {
    durable::remove_folder_if_any(folder)?;
    fs::create_dir_all(folder)?;
    let views = tensors.iter().map(|(name, data)| {
        TensorView::new(Dtype::F32, data.shape.to_vec(), &data.bytes).map(|view| (name.clone(), view))
    });
    let views = views.collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?;
    // PEFT's files say so, and some readers want it.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let bytes = safetensors::serialize(views, Some(metadata)).map_err(io::Error::other)?;
    durable::write_synced(&folder.join(TENSORS), |file| file.write_all(&bytes))?;
    let config = config_file::to_json(settings, base)?;
    durable::write_synced(&folder.join(CONFIG), |file| file.write_all(&config))?;
    durable::sync_folder(folder)
}

/// Gives a folder its name. No system replaces a folder that is not empty, so the one before makes way first: killed in
/// between, both are there under hidden names.
fn put_in_place(partial: &Path, folder: &Path) -> io::Result<()> {
    let earlier = durable::hidden(folder, ".partial-replaced-");
    durable::remove_folder_if_any(&earlier)?;
    match fs::rename(folder, &earlier) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::rename(partial, folder)?,
    }
    durable::sync_folder(durable::folder(folder))?;
    durable::remove_folder_if_any(&earlier)
}
