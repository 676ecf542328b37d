//! Devices by name.

use candle_core::Device;
use draftgauge_core::error::{Error, Evidence, Result};

/// The device of a name: `cpu` (or `candle-cpu`), `cuda`, `cuda:N`, `metal`.
///
/// # Errors
/// `Error::Argument` for another name; `Error::Device` when this build lacks the device's feature or the device is not there.
pub fn open(name: &str) -> Result<Device> {
    let (kind, number) = name.split_once(':').map_or((name, None), |(kind, number)| (kind, Some(number)));
    match (kind, number) {
        ("cpu" | "candle-cpu", None) => Ok(Device::Cpu),
        ("cuda", number) => {
            let ordinal = number.map_or(Ok(0), str::parse).map_err(|_| unknown(name))?;
            accelerator(name, cfg!(feature = "cuda"), "cuda", || Device::new_cuda(ordinal))
        }
        ("metal", None) => accelerator(name, cfg!(feature = "metal"), "metal", || Device::new_metal(0)),
        _ => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> Error {
    Error::argument(
        Evidence::new("device is not known").key("device").expected("candle-cpu, cuda, cuda:N or metal").found(name),
    )
}

fn accelerator(
    name: &str,
    built: bool,
    feature: &str,
    open: impl FnOnce() -> candle_core::Result<Device> + std::panic::UnwindSafe,
) -> Result<Device> {
    if !built {
        return Err(Error::device(
            Evidence::new(format!("this build cannot use {feature}"))
                .key("device")
                .expected(format!("a build with the feature {feature}"))
                .found(name),
        ));
    }
    // The driver's loader panics where the driver's library is not installed.
    let reason = match std::panic::catch_unwind(open) {
        Ok(Ok(device)) => return Ok(device),
        Ok(Err(error)) => error.to_string().lines().next().unwrap_or_default().to_owned(),
        Err(_) => "no driver".to_owned(),
    };
    Err(Error::device(Evidence::new(format!("device {name} cannot be opened")).key("device").found(reason)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_always_there_under_both_names() {
        assert!(open("cpu").unwrap().is_cpu());
        assert!(open("candle-cpu").unwrap().is_cpu());
    }

    #[test]
    fn another_name_is_refused_with_what_would_do() {
        for name in ["", "tpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "metal:0"] {
            let error = open(name).unwrap_err();
            assert!(matches!(error, Error::Argument(_)), "{name}: {error}");
            assert!(error.to_string().contains("candle-cpu, cuda, cuda:N or metal"), "{name}: {error}");
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_a_device_error() {
        // The number is past what any machine has; on builds without the feature the feature is named.
        for name in ["cuda:4095", "metal"] {
            if name == "metal" && cfg!(feature = "metal") {
                continue;
            }
            let error = open(name).unwrap_err();
            assert!(matches!(error, Error::Device(_)), "{name}: {error}");
            assert!(error.to_string().contains(name), "{name}: {error}");
        }
    }
}
