//! A world whose threads take turns, one at a time, in an order that follows from a seed.
//!
//! All of them run in one thread of the system, each on a stack of its own. The one that has the turn gives it away where it
//! would block, and now and then where another thread could have come in between. Time stands still while somebody can run,
//! and jumps to the next moment at which something is due when nobody can. If a thread panics, or nobody can ever go on, the
//! thread that runs the world panics with what has happened.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use generator::{Generator, Gn};
use lunet_block::Random;

pub use crate::simulated_fs::{FileFaults, FileKey, FileSystem, Loss};

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

/// The stack of a simulated thread, in bytes. What it does not touch takes no memory.
const STACK: usize = 2 << 20;

/// So many turns without time going on are a circle: what can be done at one moment takes a few thousand.
const CIRCLE: u64 = 500_000;

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
    /// How many there had been when time went on last.
    stands_since: u64,
    /// The first panic of a thread.
    failure: Option<String>,
    parts: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
    met: BTreeMap<Variant, u64>,
    /// How often in a thousand something is refused that may be.
    misfortunes: u64,
    /// What the system's clock is ahead of the world's time.
    clock: Duration,
}

/// A variant of an enum: the type's name, and the variant's place in it.
pub type Variant = (&'static str, u64);

struct Shared {
    inner: Mutex<Inner>,
    origin: Instant,
}

/// A simulated world, seen by the thread that has made it.
pub struct World(Arc<Shared>);

/// A thread between two of its turns.
type Stack = Generator<'static, (), ()>;

thread_local! {
    static HERE: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
    /// Who has the turn.
    static TURN: Cell<Id> = const { Cell::new(0) };
    /// The threads that have not the turn, but for the one that runs the world.
    static STACKS: RefCell<HashMap<Id, Stack>> = RefCell::new(HashMap::new());
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The world of the calling thread, and who it is there.
fn here() -> Option<(Arc<Shared>, Id)> {
    Some((HERE.with_borrow(Clone::clone)?, TURN.get()))
}

/// Looks at the world of the calling thread; `None` outside of one.
fn look<T>(look: impl FnOnce(&mut Inner) -> T) -> Option<T> {
    HERE.with_borrow(|shared| shared.as_ref().map(|shared| look(&mut lock(&shared.inner))))
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
            stands_since: 0,
            failure: None,
            parts: HashMap::new(),
            met: BTreeMap::new(),
            misfortunes: 0,
            clock: Duration::from_secs(EPOCH),
        };
        let shared = Arc::new(Shared { inner: Mutex::new(inner), origin: Instant::now() });
        HERE.set(Some(shared.clone()));
        TURN.set(0);
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
        forget_stacks(&self.0);
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

    /// From now on, what may be refused [is](crate::misfortune) so often in a thousand.
    pub fn set_misfortunes(&self, often: u64) {
        lock(&self.0.inner).misfortunes = often;
    }

    /// Somebody sets the system's clock, to so much after the start of 1970 plus the time of the world.
    pub fn set_clock(&self, ahead: Duration) {
        lock(&self.0.inner).clock = ahead;
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

    /// How often each variant was [met](crate::met).
    pub fn met(&self) -> BTreeMap<Variant, u64> {
        lock(&self.0.inner).met.clone()
    }

    /// Time since the world began.
    pub fn elapsed(&self) -> Duration {
        lock(&self.0.inner).now
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Threads that are left never have a turn again.
        lock(&self.0.inner).tasks.clear();
        forget_stacks(&self.0);
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

/// Lets go of the stacks of killed threads, without dropping what is on them.
fn forget_stacks(shared: &Shared) {
    let inner = lock(&shared.inner);
    let gone: Vec<Stack> = STACKS.with_borrow_mut(|stacks| {
        let ids: Vec<Id> =
            stacks.keys().filter(|id| !inner.tasks.contains_key(id)).copied().collect();
        ids.iter().filter_map(|id| stacks.remove(id)).collect()
    });
    std::mem::forget(gone);
}

/// Lets the world go on until the calling thread, which is in `state`, has the turn again. True if it was woken.
fn give_turn(shared: &Shared, me: Id, state: State) -> bool {
    {
        let mut inner = lock(&shared.inner);
        if let Some(task) = inner.tasks.get_mut(&me) {
            (task.state, task.woken) = (state, false);
        }
        if std::thread::panicking() && me != 0 {
            // The count of panics is the system thread's, so nobody else may run before this one has ended.
            inner.failure.get_or_insert_with(|| "a thread has panicked, and waits".to_owned());
            inner.tasks.remove(&me);
        }
    }
    let next = pick(shared);
    if me != 0 {
        if next != me {
            give(next);
        }
    } else if next != 0 {
        run(shared, next);
    }
    let mut inner = lock(&shared.inner);
    if let (0, Some(failure), false) = (me, inner.failure.clone(), std::thread::panicking()) {
        drop(inner);
        panic!("{failure}");
    }
    inner.tasks.get_mut(&me).is_some_and(|task| std::mem::take(&mut task.woken))
}

/// Has the thread that runs the world give the turn of the calling one to another.
fn give(next: Id) {
    TURN.set(next);
    #[expect(deprecated, reason = "a scope would have to be passed through the whole server")]
    generator::yield_with(());
}

/// Runs one thread after the other until it is the turn of the one that runs the world.
fn run(shared: &Shared, first: Id) {
    TURN.set(first);
    while TURN.get() != 0 {
        let me = TURN.get();
        let stack = STACKS.with_borrow_mut(|stacks| stacks.remove(&me));
        let mut stack = stack.expect("it has not the turn");
        stack.resume();
        if stack.is_done() {
            TURN.set(pick(shared));
        } else if lock(&shared.inner).tasks.contains_key(&me) {
            STACKS.with_borrow_mut(|stacks| stacks.insert(me, stack));
        } else {
            std::mem::forget(stack);
        }
    }
}

/// Finds who runs next.
fn pick(shared: &Shared) -> Id {
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
            }
            return 0;
        }
        if inner.turns - inner.stands_since > CIRCLE {
            let story = inner.story();
            inner
                .failure
                .get_or_insert(format!("threads turn in circles, and time stands still: {story}"));
            continue;
        }
        if let Some(id) = inner.pick() {
            return id;
        }
        match inner.next_moment() {
            Some(at) => {
                inner.stands_since = inner.turns;
                inner.now = inner.now.max(at);
            }
            None => {
                let story = inner.story();
                inner.failure.get_or_insert(format!("nobody can go on: {story}"));
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
    if look(|inner| inner.random.below(1000) < PREEMPTED) != Some(true) {
        return;
    }
    if let Some((shared, me)) = here() {
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
    look(|inner| inner.random.below(bound)).expect("a thread of a world")
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

/// Takes the one number that it is given: what a discriminant says of itself.
#[derive(Default)]
struct Place(u64);

impl Hasher for Place {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    }
}

pub(crate) fn misfortune() -> bool {
    let happens =
        |inner: &mut Inner| inner.misfortunes > 0 && inner.random.below(1000) < inner.misfortunes;
    look(happens).unwrap_or(false)
}

pub(crate) fn met<T>(value: &T) {
    let mut place = Place::default();
    std::mem::discriminant(value).hash(&mut place);
    let variant = (std::any::type_name::<T>(), place.finish());
    look(|inner| *inner.met.entry(variant).or_default() += 1);
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
    look(|inner| inner.now)
}

pub(crate) fn now() -> Option<Instant> {
    let origin = HERE.with_borrow(|shared| shared.as_ref().map(|shared| shared.origin))?;
    Some(origin + elapsed()?)
}

pub(crate) fn unix() -> Option<Duration> {
    look(|inner| inner.clock + inner.now)
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
    };
    let stack = Gn::new_opt(STACK / size_of::<usize>(), run);
    STACKS.with_borrow_mut(|stacks| stacks.insert(id, stack));
    Ok(handle)
}
