//! Volumes that fail, slow and hang.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use lunet_backends::layers::{Controls, Effect, Layer, Ops, Rate, Which, wrap};
use lunet_backends::{Access, Storage, Volume, VolumeSpec, grow, open};
use lunet_block::conformance::{self, Contents, Driver};
use lunet_block::{ByteRange, Completion, Error, Op, Request, Submit};
use lunet_ring::{DriverChoice, Payload};

use crate::common::{OnLoop, file};

const SIZE: u64 = 16 << 20;
const DRIVERS: [DriverChoice; 2] = [DriverChoice::Auto, DriverChoice::Epoll];
const EIO: Error = Error::Io(5);

fn memory() -> Volume {
    open(&VolumeSpec::new(Storage::Memory { size: SIZE })).expect("memory")
}

fn delay(time: Duration, spread: Duration) -> Layer {
    Layer::new(Effect::Delay { time, spread }, Ops::ALL)
}

fn on_loop(volume: Volume, layers: &[Layer], driver: DriverChoice) -> (OnLoop, Controls) {
    let (volume, controls) = wrap(volume, layers);
    (OnLoop::new(volume, driver), controls)
}

/// Whatever a layer does to time, it does nothing to data.
#[test]
fn a_delayed_volume_is_still_a_volume() {
    let directory = tempfile::tempdir().unwrap();
    let short = Duration::from_micros(20);
    for driver in DRIVERS {
        let path = directory.path().join(format!("{driver:?}"));
        let on_file = open(&file(&path, SIZE, Access::Buffered)).expect("a file");
        let sometimes = Layer { which: Which::Share(300_000), ..delay(Duration::ZERO, short) };
        for volume in [memory(), on_file] {
            let (mut on_loop, controls) = on_loop(volume, std::slice::from_ref(&sometimes), driver);
            conformance::run(&mut on_loop, Contents::Kept);
            assert_eq!(controls.held(), 0);
            assert!(controls.matched(0) > 1000);
        }
    }
}

#[test]
fn faults_hit_what_they_are_meant_for() {
    for driver in DRIVERS {
        let mut write = Layer::new(Effect::Fault(28), Ops::WRITE);
        write.range = Some(0..4096);
        let flush = Layer { which: Which::Nth(2), ..Layer::new(Effect::Fault(5), Ops::FLUSH) };
        let (mut on_loop, controls) = on_loop(memory(), &[write, flush], driver);
        on_loop.write(4096, &[1; 4096]).unwrap();
        assert_eq!(on_loop.write(0, &[1; 8192]), Err(Error::OutOfSpace));
        assert_eq!(on_loop.read(0, 8192).unwrap(), [[0; 4096], [1; 4096]].concat(), "no effect");
        let nowhere = ByteRange::new(0, 0);
        let answers = [(); 3].map(|()| on_loop.run(Op::Flush, nowhere, None).map(drop));
        assert_eq!(answers, [Ok(()), Err(Error::NotStable(5)), Ok(())]);
        controls.switch(0, false);
        assert_eq!(on_loop.write(0, &[2; 4096]), Ok(()));
    }
}

#[test]
fn a_limited_volume_takes_its_time() {
    for driver in DRIVERS {
        // A page takes 10 ms.
        let rate = Rate::Bytes(NonZeroU64::new(409_600).expect("not 0"));
        let limit = Layer::new(Effect::Limit(rate), Ops::WRITE);
        let (mut on_loop, controls) = on_loop(memory(), &[limit], driver);
        let start = Instant::now();
        (0..6).for_each(|page| on_loop.write(page * 4096, &[1; 4096]).unwrap());
        // The sixth begins when five have had their time, less what may be caught up on.
        assert!(start.elapsed() >= Duration::from_millis(45), "{:?}", start.elapsed());
        assert_eq!(on_loop.read(0, 4096).unwrap(), [1; 4096]);
        assert_eq!((controls.held(), controls.matched(0)), (0, 6));
    }
}

#[test]
fn a_delay_takes_its_time_and_ends_at_once_when_cancelled() {
    for driver in DRIVERS {
        let time = Duration::from_millis(30);
        let (mut on_loop, controls) = on_loop(memory(), &[delay(time, Duration::ZERO)], driver);
        let start = Instant::now();
        on_loop.write(0, &[1; 4096]).unwrap();
        assert!(start.elapsed() >= time);
        drop(on_loop);

        let (mut on_loop, _) =
            self::on_loop(memory(), &[delay(Duration::from_secs(3600), Duration::ZERO)], driver);
        start_write(&mut on_loop, 1);
        start_write(&mut on_loop, 2);
        cancel(&mut on_loop, 1);
        let done = answer(&mut on_loop);
        assert_eq!((done.tag, done.result), (1, Err(Error::Cancelled)));
        assert!(done.buf.is_some(), "the buffer comes back");
        assert_eq!(controls.held(), 0, "those of another volume do not count here");
    }
}

fn start_write(on_loop: &mut OnLoop, tag: u64) {
    let buf = on_loop.buf(&[tag as u8; 4096]);
    let (channel, queue) = on_loop.channel();
    let range = ByteRange::new(tag * 4096, 4096);
    let request = Request::new(tag, Op::Write { fua: false }, range, Some(buf));
    assert!(matches!(channel.submit(request, queue), Submit::Queued));
}

fn cancel(on_loop: &mut OnLoop, tag: u64) {
    let (channel, queue) = on_loop.channel();
    channel.cancel(tag, queue);
}

fn answer(on_loop: &mut OnLoop) -> Completion<Payload> {
    loop {
        let mut ended = Vec::new();
        on_loop.wait(&mut ended);
        // One after the other, so that none is lost.
        assert_eq!(ended.len(), 1);
        for end in ended {
            let (channel, queue) = on_loop.channel();
            if let Some(done) = channel.advance(end, queue) {
                return done;
            }
        }
    }
}

#[test]
fn what_hangs_goes_on_when_it_is_released_and_not_before() {
    for driver in DRIVERS {
        let hang = Layer::new(Effect::Hang, Ops { read: false, ..Ops::ALL });
        let (mut on_loop, controls) = on_loop(memory(), &[hang], driver);
        for tag in 1..=200 {
            start_write(&mut on_loop, tag);
        }
        cancel(&mut on_loop, 7);
        assert_eq!(on_loop.read(4096, 4096), Ok(vec![0; 4096]), "reads go on");
        assert_eq!(controls.held(), 200, "a cancellation does not reach it");
        controls.switch(0, false);
        let mut ended = Vec::new();
        let mut answered = 0;
        while answered < 200 {
            on_loop.wait(&mut ended);
            for end in ended.drain(..) {
                let (channel, queue) = on_loop.channel();
                let Some(done) = channel.advance(end, queue) else { continue };
                assert_eq!(done.result, Ok(()));
                answered += 1;
            }
        }
        assert_eq!(controls.held(), 0);
        assert_eq!(on_loop.read(200 * 4096, 4096), Ok(vec![200; 4096]));
        // Closed and left behind with something that hangs.
        controls.switch(0, true);
        start_write(&mut on_loop, 1);
        drop(on_loop);
        assert_eq!(controls.held(), 0);
    }
}

#[test]
fn a_volume_that_hangs_is_busy_when_it_is_full() {
    let (mut on_loop, _) = on_loop(memory(), &[Layer::new(Effect::Hang, Ops::ALL)], DRIVERS[0]);
    // Nobody can release it, so nobody looks.
    for tag in 0..1024 {
        let (channel, queue) = on_loop.channel();
        let request = Request::new(tag, Op::Flush, ByteRange::new(0, 0), None);
        assert!(matches!(channel.submit(request, queue), Submit::Queued));
    }
    let (channel, queue) = on_loop.channel();
    let request = Request::new(9999, Op::Flush, ByteRange::new(0, 0), None);
    let Submit::Busy(request) = channel.submit(request, queue) else { panic!("no bound") };
    drop(request.complete(Ok(())));
}

#[test]
fn layers_come_with_the_specification_and_stay_when_the_volume_grows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let layers = vec![Layer::new(Effect::Fault(5), Ops::FLUSH)];
    let spec = |size| VolumeSpec { layers: layers.clone(), ..file(&path, size, Access::Buffered) };
    let small = open(&spec(SIZE)).expect("a file");
    let large = grow(&small, &spec(2 * SIZE)).expect("it grows");
    assert_eq!(large.caps().bytes(), 2 * SIZE);
    assert_eq!(large.slow().space().unwrap().used, small.slow().space().unwrap().used);
    let (both, _) = wrap(large, &[Layer::new(Effect::Fault(5), Ops::READ)]);
    for (volume, reads) in [(small, true), (both, false)] {
        let mut on_loop = OnLoop::new(volume.clone(), DriverChoice::Auto);
        let flushed = on_loop.run(Op::Flush, ByteRange::new(0, 0), None).map(drop);
        assert_eq!(flushed, Err(Error::NotStable(5)));
        assert_eq!(on_loop.read(0, 4096).is_ok(), reads);
        let copied = volume.slow().copy_from(0, volume.slow(), ByteRange::new(4096, 4096));
        assert_eq!(copied, if reads { Ok(4096) } else { Err(EIO) }, "copies meet the layers");
    }
}

#[test]
fn copies_wait_and_fail_as_their_reads_and_writes_would() {
    let (source, _) = wrap(memory(), &[Layer::new(Effect::Fault(28), Ops::WRITE)]);
    let (target, controls) = wrap(memory(), &[Layer::new(Effect::Hang, Ops::WRITE)]);
    let range = ByteRange::new(0, 1 << 20);
    assert_eq!(source.slow().copy_from(0, target.slow(), range), Err(Error::OutOfSpace));
    OnLoop::new(source.clone(), DRIVERS[0]).write(0, &[1; 4096]).unwrap_err();
    std::thread::scope(|scope| {
        let copy = scope.spawn(|| target.slow().copy_from(0, source.slow(), range));
        while controls.held() == 0 {
            std::thread::yield_now();
        }
        assert!(!copy.is_finished());
        controls.switch(0, false);
        assert_eq!(copy.join().expect("no panic"), Ok(1 << 20));
    });
    let plain = memory();
    assert_eq!(plain.slow().copy_from(0, target.slow(), range), Err(Error::Unsupported));
}
