//! What drives of known models move, in MB/s (10^6 bytes per second).
//!
//! Makers state the best case: sequential, a drive that is not full, and for consumer drives
//! writes into the part of the flash that is used with one bit for each cell. `lasting` is what is
//! left of the writes when that part is used up, where somebody measured it.

use crate::facts::Drive;

/// A model's speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// A part of the model's name that tells it from others.
    model: &'static str,
    /// Sequential reads in MB/s.
    pub read: f64,
    /// Sequential writes in MB/s.
    pub write: f64,
    /// Writes that last, in MB/s.
    pub lasting: Option<f64>,
    /// Who says so.
    pub source: &'static str,
}

const fn speed(
    model: &'static str,
    read: f64,
    write: f64,
    lasting: Option<f64>,
    source: &'static str,
) -> Speed {
    Speed { model, read, write, lasting, source }
}

/// The first whose name is part of the drive's model.
const SPEEDS: &[Speed] = &[
    speed(
        "SN850X",
        7300.0,
        6600.0,
        Some(3400.0),
        "WD product brief (2 and 4 TB); lasting: the median of a review that filled one of 2 TB",
    ),
    speed("SN850", 7000.0, 5300.0, None, "WD product brief"),
    speed("SN770", 5150.0, 4850.0, None, "WD product brief"),
    speed("SN750", 3470.0, 3000.0, None, "WD product brief"),
    speed("990 PRO", 7450.0, 6900.0, None, "Samsung data sheet"),
    speed("980 PRO", 7000.0, 5000.0, None, "Samsung data sheet (1 TB)"),
    speed("970 EVO Plus", 3500.0, 3300.0, None, "Samsung data sheet"),
    speed("PM9A3", 6800.0, 4000.0, None, "Samsung data sheet (3.84 TB)"),
    speed("MZQL2", 6800.0, 4000.0, None, "Samsung data sheet of the PM9A3 (3.84 TB)"),
    speed("PM1733", 7000.0, 3800.0, None, "Samsung data sheet"),
    speed("MZWLJ", 7000.0, 3800.0, None, "Samsung data sheet of the PM1733"),
    speed("MZQLB", 3200.0, 2000.0, None, "Samsung data sheet of the PM983 (1.92 TB)"),
    speed("7450_MTFD", 6800.0, 5300.0, None, "Micron data sheet of the 7450 PRO (3.84 TB)"),
    speed("Micron_7400", 6600.0, 3500.0, None, "Micron data sheet of the 7400 PRO (3.84 TB)"),
    speed("Micron_7300", 3000.0, 1900.0, None, "Micron data sheet of the 7300 PRO (3.84 TB)"),
    speed("Micron_9300", 3500.0, 3500.0, None, "Micron data sheet of the 9300 PRO (7.68 TB)"),
    speed("SSDPE2KX", 3200.0, 3000.0, None, "Intel data sheet of the DC P4510 (8 TB)"),
    speed("SSDPF2KX", 7000.0, 4200.0, None, "Intel data sheet of the D7-P5510 (7.68 TB)"),
    speed("SSDPF21Q", 7200.0, 6200.0, None, "Intel data sheet of the Optane P5800X"),
    speed("KCD6", 6200.0, 4000.0, None, "Kioxia data sheet of the CD6-R"),
    speed("KCD8", 7200.0, 6000.0, None, "Kioxia data sheet of the CD8-R (7.68 TB)"),
    speed("870 EVO", 560.0, 530.0, None, "Samsung data sheet"),
    speed("MZ7L3", 550.0, 520.0, None, "Samsung data sheet of the PM893"),
];

/// What is known of the drive's model.
pub(crate) fn drive_speed(drive: &Drive) -> Option<Speed> {
    speed_of(drive.model.as_deref()?)
}

/// What is known of a model.
pub(crate) fn speed_of(model: &str) -> Option<Speed> {
    let model = model.to_lowercase();
    SPEEDS.iter().find(|speed| model.contains(&speed.model.to_lowercase())).copied()
}
