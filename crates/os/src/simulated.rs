//! A world whose threads take turns, one at a time, in an order that follows from a seed.
//!
//! Each thread is a thread of the system, but only the one that has the turn runs. It gives the turn away where it would
//! block, and now and then where another thread could have come in between. Time stands still while somebody can run,
//! and jumps to the next moment at which something is due when nobody can. If a thread panics, or nobody can ever go on, the
//! thread that runs the world panics with what has happened.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lunet_block::Random;

/// Names a thread of a world. The one that runs the world is 0.
type Id = u64;

/// Something that threads wait for: a lock, a queue, an event loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

/// The process that a thread belongs to. The one that runs the world is in process 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process(pub u32);

/// How often in a thousand a thread gives its turn away where it need not.
const PREEMPTED: u64 = 60;

/// The stack of a simulated thread, in bytes.
const STACK: usize = 2 << 20;

/// 2026-01-01, where the system's clock of a world starts, in seconds.
const EPOCH: u64 = 1_767_225_600;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// Until somebody wakes those who wait for the key, or the time has come.
    Waiting {
        on: Option<Key>,
        until: Option<Duration>,
    },
    Ended,
}

struct Task {
    name: String,
    process: Process,
    state: State,
    /// It was woken, not timed out.
    woken: bool,
    /// It does not run before: a stalled thread.
    stalled: Duration,
    turn: Arc<Turn>,
}

/// The signal by which a thread gets its turn.
#[derive(Default)]
struct Turn {
    mine: Mutex<bool>,
    news: Condvar,
}

impl Turn {
    fn give(&self) {
        *lock(&self.mine) = true;
        self.news.notify_one();
    }

    fn wait(&self) {
        let mut mine = lock(&self.mine);
        while !*mine {
            mine = self.news.wait(mine).unwrap_or_else(PoisonError::into_inner);
        }
        *mine = false;
    }
}

/// What happens at a moment, whoever has the turn then.
type Happening = Box<dyn FnOnce() + Send>;

struct Inner {
    now: Duration,
    random: Random,
    tasks: BTreeMap<Id, Task>,
    due: BTreeMap<(Duration, u64), Happening>,
    last: u64,
    keys: u64,
    turns: u64,
    /// The first panic of a thread.
    failure: Option<String>,
    parts: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

struct Shared {
    inner: Mutex<Inner>,
    origin: Instant,
}

/// A simulated world, seen by the thread that has made it.
pub struct World(Arc<Shared>);

thread_local! {
    static HERE: RefCell<Option<(Arc<Shared>, Id)>> = const { RefCell::new(None) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The world of the calling thread, and who it is there.
fn here() -> Option<(Arc<Shared>, Id)> {
    HERE.with_borrow(Clone::clone)
}

impl World {
    /// A world for the calling thread, which has the turn.
    pub fn new(seed: u64) -> Self {
        let mut tasks = BTreeMap::new();
        tasks.insert(0, Task::new("world", Process(0)));
        let inner = Inner {
            now: Duration::ZERO,
            random: Random::new(seed),
            tasks,
            due: BTreeMap::new(),
            last: 0,
            keys: 0,
            turns: 0,
            failure: None,
            parts: HashMap::new(),
        };
        let shared = Arc::new(Shared { inner: Mutex::new(inner), origin: Instant::now() });
        HERE.set(Some((shared.clone(), 0)));
        Self(shared)
    }

    /// Starts a thread in a process.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn spawn_in(
        &self,
        process: Process,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        start(&self.0, process, name, work)
    }

    /// The threads of a process get no turn any more. What they have stays where it is: nothing of it is dropped, as
    /// after SIGKILL.
    pub fn kill(&self, process: Process) {
        lock(&self.0.inner).tasks.retain(|_, task| task.process != process);
    }

    /// The threads of a process that have not ended.
    pub fn alive(&self, process: Process) -> usize {
        let inner = lock(&self.0.inner);
        let alive = |task: &&Task| task.process == process && task.state != State::Ended;
        inner.tasks.values().filter(alive).count()
    }

    /// A thread whose name begins so gets no turn for some time.
    pub fn stall(&self, process: Process, name: &str, time: Duration) {
        let mut inner = lock(&self.0.inner);
        let until = inner.now + time;
        let all = inner.tasks.values_mut();
        all.filter(|task| task.process == process && task.name.starts_with(name))
            .for_each(|task| task.stalled = until);
    }

    /// Who is there, and what for.
    pub fn story(&self) -> String {
        lock(&self.0.inner).story()
    }

    /// How many turns there have been.
    pub fn turns(&self) -> u64 {
        lock(&self.0.inner).turns
    }

    /// The first panic of a thread, if there was one.
    pub fn failure(&self) -> Option<String> {
        lock(&self.0.inner).failure.clone()
    }

    /// Time since the world began.
    pub fn elapsed(&self) -> Duration {
        lock(&self.0.inner).now
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Threads that are left wait for ever for a turn.
        lock(&self.0.inner).tasks.clear();
        let due = std::mem::take(&mut lock(&self.0.inner).due);
        std::mem::forget(due);
        HERE.set(None);
    }
}

impl Task {
    fn new(name: &str, process: Process) -> Self {
        Self {
            name: name.to_owned(),
            process,
            state: State::Ready,
            woken: false,
            stalled: Duration::ZERO,
            turn: Arc::default(),
        }
    }
}

impl Inner {
    /// Who runs next: somebody who can, by chance, or else whoever can first. `None` if something has to happen before.
    fn pick(&mut self) -> Option<Id> {
        let now = self.now;
        let can = |task: &Task| task.state == State::Ready && task.stalled <= now;
        let ready: Vec<Id> =
            self.tasks.iter().filter(|(_, task)| can(task)).map(|(id, _)| *id).collect();
        match ready.len() {
            0 => None,
            len => Some(ready[self.random.below(len as u64) as usize]),
        }
    }

    /// The next moment at which somebody can run or something happens.
    fn next_moment(&self) -> Option<Duration> {
        let task = |task: &Task| match task.state {
            State::Ready => Some(task.stalled),
            State::Waiting { until, .. } => until.map(|until| until.max(task.stalled)),
            State::Ended => None,
        };
        let first = self.tasks.values().filter_map(task).min();
        let happens = self.due.first_key_value().map(|((at, _), _)| *at);
        match (first, happens) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Ends the waits whose time has come.
    fn time_out(&mut self) {
        let now = self.now;
        for task in self.tasks.values_mut() {
            if matches!(task.state, State::Waiting { until: Some(until), .. } if until <= now) {
                (task.state, task.woken) = (State::Ready, false);
            }
        }
    }

    /// Those who wait.
    fn story(&self) -> String {
        let tasks = self.tasks.values().filter(|task| task.state != State::Ended);
        tasks.map(|task| format!("{} ({:?})", task.name, task.state)).collect::<Vec<_>>().join(", ")
    }
}

/// Lets the world go on until the calling thread, which is in `state`, has the turn again. True if it was woken.
fn give_turn(shared: &Arc<Shared>, me: Id, state: State) -> bool {
    let turn = {
        let mut inner = lock(&shared.inner);
        let Some(task) = inner.tasks.get_mut(&me) else { gone() };
        task.state = state;
        task.woken = false;
        task.turn.clone()
    };
    if !pass(shared, me) {
        turn.wait();
    }
    let mut inner = lock(&shared.inner);
    if let (0, Some(failure), false) = (me, inner.failure.clone(), std::thread::panicking()) {
        drop(inner);
        panic!("{failure}");
    }
    match inner.tasks.get_mut(&me) {
        Some(task) => std::mem::take(&mut task.woken),
        None => {
            drop(inner);
            gone()
        }
    }
}

/// The process of the calling thread was killed: it never runs again.
fn gone() -> ! {
    loop {
        std::thread::park();
    }
}

/// Finds who runs next, and gives it the turn, unless that is the calling thread: then true.
fn pass(shared: &Arc<Shared>, me: Id) -> bool {
    loop {
        let mut inner = lock(&shared.inner);
        inner.turns += 1;
        inner.time_out();
        let happens = inner.due.first_key_value().is_some_and(|((at, _), _)| *at <= inner.now);
        if happens {
            let happening = inner.due.pop_first();
            drop(inner);
            happening.into_iter().for_each(|(_, happening)| happening());
            continue;
        }
        if inner.failure.is_some() {
            // The thread that runs the world tells of it.
            if let Some(task) = inner.tasks.get_mut(&0) {
                task.state = State::Ready;
                let turn = task.turn.clone();
                drop(inner);
                return me == 0 || {
                    turn.give();
                    false
                };
            }
        }
        if let Some(id) = inner.pick() {
            let turn = inner.tasks[&id].turn.clone();
            drop(inner);
            return id == me || {
                turn.give();
                false
            };
        }
        match inner.next_moment() {
            Some(at) => inner.now = inner.now.max(at),
            None => {
                let story = inner.story();
                inner.failure.get_or_insert(format!("nobody can go on: {story}"));
                if !inner.tasks.contains_key(&0) {
                    drop(inner);
                    gone();
                }
            }
        }
    }
}

/// Waits for a key, at most until a moment. True if it was woken; `None` outside of a world.
pub fn park(on: Option<Key>, limit: Option<Duration>) -> Option<bool> {
    let (shared, me) = here()?;
    let until = limit.map(|limit| lock(&shared.inner).now.saturating_add(limit));
    Some(give_turn(&shared, me, State::Waiting { on, until }))
}

/// Wakes who has waited longest for a key, or all.
pub fn wake(key: Key, all: bool) {
    let Some((shared, _)) = here() else { return };
    let mut inner = lock(&shared.inner);
    for task in inner.tasks.values_mut() {
        if matches!(task.state, State::Waiting { on: Some(on), .. } if on == key) {
            (task.state, task.woken) = (State::Ready, true);
            if !all {
                return;
            }
        }
    }
}

/// A key for something new; `None` outside of a world.
pub fn key() -> Option<Key> {
    let (shared, _) = here()?;
    let mut inner = lock(&shared.inner);
    inner.keys += 1;
    Some(Key(inner.keys))
}

/// Somebody else may come in here.
pub fn maybe_yield() {
    let Some((shared, me)) = here() else { return };
    let yields = lock(&shared.inner).random.below(1000) < PREEMPTED;
    if yields {
        give_turn(&shared, me, State::Ready);
    }
}

/// Has something happen after some time. It must not block.
///
/// # Panics
/// Outside of a world.
pub fn at(delay: Duration, happening: impl FnOnce() + Send + 'static) {
    let (shared, _) = here().expect("a thread of a world");
    let mut inner = lock(&shared.inner);
    inner.last += 1;
    let key = (inner.now.saturating_add(delay), inner.last);
    inner.due.insert(key, Box::new(happening));
}

/// A number below `bound`, by the world's seed.
///
/// # Panics
/// Outside of a world.
pub fn below(bound: u64) -> u64 {
    let (shared, _) = here().expect("a thread of a world");
    lock(&shared.inner).random.below(bound)
}

/// The process of the calling thread.
pub fn process() -> Process {
    let Some((shared, me)) = here() else { return Process(0) };
    lock(&shared.inner).tasks.get(&me).map_or(Process(0), |task| task.process)
}

/// Whether the calling thread belongs to a world.
pub fn is_here() -> bool {
    HERE.with_borrow(Option::is_some)
}

/// Something that a world has one of, such as its network; made by `T::default()` when it is first asked for.
///
/// # Panics
/// Outside of a world.
pub fn part<T: Default + Send + Sync + 'static>() -> Arc<T> {
    let (shared, _) = here().expect("a thread of a world");
    let mut inner = lock(&shared.inner);
    let part = inner.parts.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
    part.clone().downcast().expect("it is stored by its type")
}

/// Time since the world began; `None` outside of one.
pub fn elapsed() -> Option<Duration> {
    let (shared, _) = here()?;
    let now = lock(&shared.inner).now;
    Some(now)
}

pub(crate) fn now() -> Option<Instant> {
    let (shared, _) = here()?;
    let now = lock(&shared.inner).now;
    Some(shared.origin + now)
}

pub(crate) fn unix() -> Option<Duration> {
    Some(Duration::from_secs(EPOCH) + elapsed()?)
}

pub(crate) fn sleep(time: Duration) -> bool {
    park(None, Some(time)).is_some()
}

/// A thread that can be waited for.
pub struct JoinHandle<T> {
    end: Arc<crate::sync::Mutex<bool>>,
    ended: Arc<crate::sync::Condvar>,
    nothing: std::marker::PhantomData<T>,
}

impl JoinHandle<()> {
    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the thread has ended.
    ///
    /// # Errors
    /// None: a thread of a world that panics ends the world.
    pub fn join(self) -> std::thread::Result<()> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        while !*end {
            end = self.ended.wait(end).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }
}

pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    if let Some((shared, _)) = here() {
        return start(&shared, process(), name, work);
    }
    let (handle, done) = handle();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        work();
        done();
    })?;
    Ok(handle)
}

/// A handle, and what ends the wait for it.
fn handle() -> (JoinHandle<()>, impl FnOnce() + Send + 'static) {
    let end: Arc<crate::sync::Mutex<bool>> = Arc::default();
    let ended: Arc<crate::sync::Condvar> = Arc::default();
    let handle =
        JoinHandle { end: end.clone(), ended: ended.clone(), nothing: std::marker::PhantomData };
    let done = move || {
        *end.lock().unwrap_or_else(PoisonError::into_inner) = true;
        ended.notify_all();
    };
    (handle, done)
}

fn start(
    shared: &Arc<Shared>,
    process: Process,
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let task = Task::new(name, process);
    let turn = task.turn.clone();
    let id = {
        let mut inner = lock(&shared.inner);
        inner.last += 1;
        let id = inner.last;
        inner.tasks.insert(id, task);
        id
    };
    let (handle, done) = handle();
    let world = shared.clone();
    let run = move || {
        turn.wait();
        HERE.set(Some((world.clone(), id)));
        let result = catch_unwind(AssertUnwindSafe(work));
        if let Err(panic) = result {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let mut inner = lock(&world.inner);
            let name = inner.tasks.get(&id).map(|task| task.name.clone()).unwrap_or_default();
            let text = text.unwrap_or_else(|| "a panic without words".to_owned());
            inner.failure.get_or_insert(format!("{name}: {text}"));
        }
        done();
        if let Some(task) = lock(&world.inner).tasks.get_mut(&id) {
            task.state = State::Ended;
        }
        pass(&world, id);
    };
    let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK);
    if let Err(error) = thread.spawn(run) {
        lock(&shared.inner).tasks.remove(&id);
        return Err(error);
    }
    Ok(handle)
}
