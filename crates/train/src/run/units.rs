//! Numbers as people read them, in reports and on terminals.

/// A number with four significant digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if !size.is_finite() => value.to_string(),
        size if (1e-3..1e5).contains(&size) => {
            let decimals = (3 - size.log10().floor() as i32).max(0) as usize;
            format!("{value:.decimals$}")
        }
        _ => format!("{value:.3e}"),
    }
}

/// Bytes in the unit that fits.
pub fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.max(1).ilog2() / 10).min(4);
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{:.2} {}", bytes as f64 / 1024_f64.powi(unit as i32), units[unit as usize]),
    }
}

/// Seconds in the units that fit.
pub fn duration(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_significant_digits() {
        let cases = [(0.0, "0"), (1.0, "1.000"), (12345.6, "12346"), (0.012345, "0.01235"), (1e-5, "1.000e-5")];
        for (value, expected) in cases {
            assert_eq!(number(value), expected);
        }
        assert_eq!(number(f64::NAN), "NaN");
        assert_eq!(number(-1234.56), "-1235");
    }

    #[test]
    fn sizes_and_times_have_fitting_units() {
        assert_eq!([0, 1023, 1536, u64::MAX].map(bytes), ["0 B", "1023 B", "1.50 KiB", "16777216.00 TiB"]);
        assert_eq!([0.25, 61.0, 7260.0].map(duration), ["0.2 s", "1 min 1 s", "2 h 1 min"]);
    }
}
