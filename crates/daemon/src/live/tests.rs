//! Changes of a server in this process, whose event loops can be stalled.

use std::any::Any;
use std::fs;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use lunet_backends::Volume;
use lunet_block::{Backend, Caps, Channel, Completion, IoDone, Request, Slow, Submit};
use lunet_front_iscsi::Server;
use lunet_os::sync::{Condvar, Mutex};
use lunet_ring::{Payload, Ring};
use lunet_server::Member;
use tempfile::TempDir;

use super::*;
use crate::opening::How;
use crate::plan::plan;
use crate::{identity, serve};

const MIB: u64 = 1 << 20;

const FILE: &str = "\
[server]
shards = 2

[[portal]]
address = '127.0.0.1:0'

[volumes.a]
backend = 'file'
size = '1MiB'

[[target]]
name = 'iqn.2026-11.l:x'
luns = ['a']
";

/// Stalls the first event loop that closes its channel to a volume, until it is opened.
#[derive(Default)]
struct Trap {
    armed: Mutex<bool>,
    news: Condvar,
}

impl Trap {
    fn arm(&self) {
        *self.armed.lock().unwrap() = true;
    }

    fn open(&self) {
        *self.armed.lock().unwrap() = false;
        self.news.notify_all();
    }
}

struct Trapped {
    inner: Volume,
    trap: Arc<Trap>,
}

impl Backend<Payload, Ring> for Trapped {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn open_channel(
        &self,
        number: u16,
        ring: &mut Ring,
    ) -> Result<Box<dyn Channel<Payload, Ring>>, i32> {
        let inner = self.inner.open_channel(number, ring)?;
        Ok(Box::new(TrappedChannel { inner, trap: self.trap.clone() }))
    }

    fn slow(&self) -> &dyn Slow {
        self.inner.slow()
    }
}

/// A volume on a file system that hangs as long as the trap is armed: it says when it is asked to sync.
struct Hung {
    inner: Volume,
    trap: Arc<Trap>,
    asked: SyncSender<()>,
}

impl Backend<Payload, Ring> for Hung {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn open_channel(
        &self,
        number: u16,
        ring: &mut Ring,
    ) -> Result<Box<dyn Channel<Payload, Ring>>, i32> {
        self.inner.open_channel(number, ring)
    }

    fn slow(&self) -> &dyn Slow {
        self
    }
}

impl Slow for Hung {
    fn sync(&self) -> Result<(), lunet_block::Error> {
        let armed = self.trap.armed.lock().unwrap();
        if *armed {
            let _ = self.asked.try_send(());
        }
        drop(self.trap.news.wait_while(armed, |armed| *armed).unwrap());
        self.inner.slow().sync()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.inner.slow().as_any()
    }
}

struct TrappedChannel {
    inner: Box<dyn Channel<Payload, Ring>>,
    trap: Arc<Trap>,
}

impl Channel<Payload, Ring> for TrappedChannel {
    fn submit(&mut self, request: Request<Payload>, ring: &mut Ring) -> Submit<Payload> {
        self.inner.submit(request, ring)
    }

    fn advance(&mut self, done: IoDone<Payload>, ring: &mut Ring) -> Option<Completion<Payload>> {
        self.inner.advance(done, ring)
    }

    fn cancel(&mut self, tag: u64, ring: &mut Ring) {
        self.inner.cancel(tag, ring);
    }

    fn close(self: Box<Self>, ring: &mut Ring) {
        let armed = self.trap.armed.lock().unwrap();
        drop(self.trap.news.wait_while(armed, |armed| *armed).unwrap());
        self.inner.close(ring);
    }
}

/// A server with the volume `a`, whose event loops stall when they let go of it, and does not wait long for them.
fn started() -> (TempDir, Server, Manager, Arc<Trap>) {
    started_with(|inner, trap| Arc::new(Trapped { inner, trap }))
}

fn started_with(
    wrapped: impl FnOnce(Volume, Arc<Trap>) -> Volume,
) -> (TempDir, Server, Manager, Arc<Trap>) {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("lunet.toml"), FILE).unwrap();
    let options = Options { data: Some(dir.path().to_owned()), ..Options::default() };
    let plan = plan(&options).unwrap();
    let machine = identity::machine(&plan.data).unwrap();
    let mut made = serve::Made::default();
    let mut served = serve::open_volumes(plan, machine, How::Make, &mut made).unwrap();
    made.keep();
    let trap = Arc::new(Trap::default());
    let open = served.open.get_mut("a").unwrap();
    open.volume = wrapped(open.volume.clone(), trap.clone());
    let config = served.plan.config.clone();
    let mut start = serve::assemble(&config, &served.plan.data, served.layout());
    start.limits.change_wait = Duration::from_millis(300);
    let server = lunet_front_iscsi::start(start).unwrap();
    let [_, other] = Member::of([config.server.shards; 2]);
    let manager = Manager::new(
        &options,
        (server.handle(), Arc::new(Second::new(other, lunet_server::Processors::Any))),
        served,
    );
    (dir, server, manager, trap)
}

fn resize(size: u64) -> Change {
    Change::ResizeVolume { name: "a".to_owned(), size: Some(size) }
}

#[test]
fn a_resize_is_not_undone_when_event_loops_stall_after_its_commit() {
    let (dir, server, manager, trap) = started();
    let length = || fs::metadata(dir.path().join("a.img")).unwrap().len();
    let text = || fs::read_to_string(dir.path().join("lunet.toml")).unwrap();
    trap.arm();
    let done = manager.change(&resize(2 * MIB)).unwrap();
    assert_eq!(done.done, "volume a has 2 MiB now");
    assert!(done.notes[0].contains("2 event loops have not taken it over yet"), "{done:?}");
    let served = || server.handle().volumes()[0].1.caps().bytes();
    assert_eq!((served(), length()), (2 * MIB, 2 * MIB));
    assert!(text().contains("size = \"2MiB\""), "{}", text());
    // While they stall, nothing else can be changed, and trying leaves everything as it is.
    let target =
        Change::CreateTarget { name: "iqn.2026-11.l:y".to_owned(), alias: None, nvme: false };
    let error = manager.change(&target).unwrap_err().to_string();
    assert!(error.contains("an event loop does not answer"), "{error}");
    let error = manager.change(&resize(4 * MIB)).unwrap_err().to_string();
    assert!(error.contains("an event loop does not answer"), "{error}");
    assert_eq!((served(), length()), (2 * MIB, 2 * MIB));
    assert!(!text().contains("l:y"), "{}", text());
    trap.open();
    let done = manager.change(&resize(4 * MIB)).unwrap();
    assert_eq!((done.notes.len(), served(), length()), (0, 4 * MIB, 4 * MIB), "{done:?}");
    assert!(!dir.path().join("change.journal").exists());
    manager.close(Duration::ZERO);
    assert!(server.stop(Duration::ZERO).flushed);
}

#[test]
fn a_snapshot_on_storage_that_hangs_holds_up_the_changes_of_its_volume_alone() {
    let (asked, hangs) = sync_channel(1);
    let (_dir, server, manager, trap) =
        started_with(|inner, trap| Arc::new(Hung { inner, trap, asked }));
    let snapshot = |volume: &str, name: &str| Change::CreateSnapshot {
        volume: volume.to_owned(),
        snapshot: name.to_owned(),
    };
    trap.arm();
    std::thread::scope(|scope| {
        // Whether its file system can make one is not the matter here.
        let hung = scope.spawn(|| drop(manager.change(&snapshot("a", "one"))));
        hangs.recv().unwrap();
        let new = lunet_api::NewVolume {
            name: "b".to_owned(),
            backend: lunet_api::Backend::File,
            size: Some(MIB),
            ..lunet_api::NewVolume::default()
        };
        manager.change(&Change::CreateVolume(new)).unwrap();
        manager.preview(&snapshot("b", "two")).unwrap();
        for change in [
            resize(2 * MIB),
            snapshot("a", "two"),
            Change::Apply { force: false, keep_sessions: false },
        ] {
            let error = manager.change(&change).unwrap_err().to_string();
            assert!(error.contains("volume a or its snapshots are being changed"), "{error}");
            assert!(
                error.contains("create-snapshot volume=\"a\" snapshot=\"one\" began"),
                "{error}"
            );
        }
        trap.open();
        hung.join().unwrap();
    });
    manager.change(&resize(2 * MIB)).unwrap();
    manager.close(Duration::ZERO);
    let error = manager.change(&snapshot("a", "three")).unwrap_err().to_string();
    assert!(error.contains("lunet is stopping"), "{error}");
    assert!(server.stop(Duration::ZERO).flushed);
}
