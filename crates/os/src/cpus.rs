//! Processors: which there are for this thread, and where it runs.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Binds the calling thread, and the threads that it starts from now on, to these processors; if none is named, to nothing.
///
/// # Errors
/// One of them may not be used.
pub fn bind(processors: &[usize]) -> io::Result<()> {
    if processors.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for cpu in processors {
        if *cpu >= CpuSet::MAX_CPU {
            return Err(invalid(format!("there is no processor {cpu}")));
        }
        set.set(*cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Where threads of this process run that are not bound.
static UNBOUND: OnceLock<CpuSet> = OnceLock::new();

/// Binds the calling thread alone to these processors, if any is named: the threads that it starts [roam](roam).
///
/// # Errors
/// One of them may not be used.
pub fn bind_alone(processors: &[usize]) -> io::Result<()> {
    if processors.is_empty() {
        return Ok(());
    }
    if UNBOUND.get().is_none() {
        let _ = UNBOUND.set(sched_getaffinity(None)?);
    }
    bind(processors)
}

/// Has the calling thread run wherever threads did before the first was [bound alone](bind_alone). Best effort.
pub fn roam() {
    if let Some(all) = UNBOUND.get() {
        let _ = sched_setaffinity(None, all);
    }
}

/// Starts something that stays on these processors, if any are named. The calling thread goes back to where it was.
///
/// # Errors
/// One of them may not be used, or it does not start.
pub fn on<T>(processors: &[usize], start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = sched_getaffinity(None)?;
    bind(processors)?;
    let started = start();
    sched_setaffinity(None, &before)?;
    started
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Processors by their numbers, ascending, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(Vec<usize>);

impl FromStr for Cpus {
    type Err = io::Error;

    /// Reads a list as the kernel writes it: `0`, `0-3,8`.
    fn from_str(text: &str) -> io::Result<Self> {
        let number = |text: &str| match text.parse::<usize>() {
            Ok(cpu) if cpu < CpuSet::MAX_CPU => Ok(cpu),
            _ => Err(invalid(format!("\"{text}\" is no processor: write numbers, as in 0-3,8"))),
        };
        let mut all = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                let why = format!("{part} runs backwards: write the lesser number first");
                return Err(invalid(why));
            }
            all.extend(first..=last);
        }
        all.sort_unstable();
        all.dedup();
        Ok(Self(all))
    }
}

impl fmt::Display for Cpus {
    /// As it is read, and as fio reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, run) in self.0.chunk_by(|one, next| one + 1 == *next).enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match run {
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                alone => alone.iter().try_for_each(|cpu| write!(f, "{comma}{cpu}"))?,
            }
        }
        Ok(())
    }
}

impl Cpus {
    /// Those that this thread may use now.
    ///
    /// # Errors
    /// `sched_getaffinity` has failed.
    pub fn allowed() -> io::Result<Self> {
        let set = sched_getaffinity(None)?;
        Ok(Self((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()))
    }

    /// These, in whatever order; `None` if there is none.
    pub fn of(mut processors: Vec<usize>) -> Option<Self> {
        processors.sort_unstable();
        processors.dedup();
        (!processors.is_empty()).then_some(Self(processors))
    }

    /// Their numbers.
    pub fn numbers(&self) -> &[usize] {
        &self.0
    }

    /// Whether all of them may be used.
    ///
    /// # Errors
    /// One may not.
    pub fn check(&self) -> io::Result<()> {
        let allowed = Self::allowed()?;
        match self.0.iter().find(|cpu| !allowed.0.contains(cpu)) {
            Some(cpu) => Err(invalid(format!(
                "processor {cpu} is none that lunet may use here; it may use {allowed}"
            ))),
            None => Ok(()),
        }
    }

    /// Binds the calling thread, and the threads that it starts from now on.
    ///
    /// # Errors
    /// One of the processors has gone since [`Cpus::check`].
    pub fn bind(&self) -> io::Result<()> {
        bind(&self.0)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_a_bound_thread_starts_is_not_bound() {
        let before = super::sched_getaffinity(None).unwrap();
        let one = super::Cpus::allowed().unwrap().numbers()[0];
        let bound = move || {
            super::bind_alone(&[one]).unwrap();
            let own = super::Cpus::allowed().unwrap();
            let (tell, told) = std::sync::mpsc::channel();
            let child = move || tell.send(super::sched_getaffinity(None).unwrap()).unwrap();
            crate::thread::spawn("child", child).unwrap();
            (own, told.recv().unwrap())
        };
        let (own, of_child) = std::thread::spawn(bound).join().unwrap();
        assert_eq!(own.numbers(), [one]);
        assert_eq!(of_child, before);
    }

    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        for (text, told) in [("0", "0"), ("8,0-3,2", "0-3,8"), ("5,4,7", "4-5,7")] {
            assert_eq!(text.parse::<Cpus>().expect(text).to_string(), told);
        }
        for wrong in ["", "x", "1-", "3-1", "-1", "0,,1", "99999999"] {
            assert!(wrong.parse::<Cpus>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_started_on_processors_stays_there_and_its_parent_does_not() {
        let allowed = Cpus::allowed().expect("the kernel says it");
        let one = [allowed.0[0]];
        let child = on(&one, || Ok(std::thread::spawn(|| Cpus::allowed().expect("said"))));
        assert_eq!(child.expect("started").join().expect("it ends").0, one);
        assert_eq!(Cpus::allowed().expect("said"), allowed);
        assert_eq!(on(&[], Cpus::allowed).expect("nothing is bound"), allowed);
    }

    #[test]
    fn a_thread_and_its_children_are_bound() {
        let allowed = Cpus::allowed().expect("the kernel says it");
        let one = Cpus(vec![allowed.0[0]]);
        one.check().expect("it is one of them");
        let (own, child) = std::thread::spawn({
            let one = one.clone();
            move || {
                one.bind().expect("it may be used");
                let child = std::thread::spawn(|| Cpus::allowed().expect("said"));
                (Cpus::allowed().expect("said"), child.join().expect("it ends"))
            }
        })
        .join()
        .expect("it ends");
        assert_eq!((&own, &child), (&one, &one));
        assert_eq!(Cpus::allowed().expect("said"), allowed, "this thread stays free");
        let strange = Cpus(vec![CpuSet::MAX_CPU - 1]);
        let error = strange.check().expect_err("no machine here has so many");
        assert!(error.to_string().contains(&format!("it may use {allowed}")), "{error}");
        let error = bind(&[CpuSet::MAX_CPU]).expect_err("nor a set with it");
        assert!(error.to_string().contains("there is no processor"), "{error}");
    }
}
