//! What binds the server, and its metrics: what two looks at its counts say.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::{StatusCode, header};
use lunet_api::rates::Sample;
use lunet_api::{Answer, Code, Error, Request, Verdict};
use lunet_metrics::{Format, Snapshot, render_as};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::sleep;

use crate::app::{App, Call};
use crate::problem::Problem;
use crate::reply::{Response, reply};

/// A verdict is of this time at least, and is the answer to whoever asks again within it.
const SHORT: Duration = Duration::from_secs(1);

/// A verdict is of this time at most.
const LONG: Duration = Duration::from_secs(60);

/// The last look, and what was found.
struct Seen {
    sample: Sample,
    verdict: Option<Verdict>,
}

/// What those who ask share: each verdict reaches from one look to the next.
#[derive(Default)]
pub(crate) struct Binds(Mutex<Option<Seen>>);

impl App {
    /// What the server has counted by now. `places` bounds how many look at one time.
    pub(crate) async fn sample(&self, places: &Arc<Semaphore>) -> Result<Sample, Problem> {
        let service = Arc::clone(&self.service);
        let who = self.own();
        let work = move || {
            let stats = service.answer(&who, Request::Stats)?;
            let at = Instant::now();
            let sessions = service.answer(&who, Request::Sessions)?;
            match (stats, sessions) {
                (Answer::Stats(stats), Answer::Sessions(sessions)) => {
                    Ok(Sample { at, stats: *stats, sessions })
                }
                _ => Err(Error::new(Code::Failed, "the server answers something else")),
            }
        };
        Ok(self.blocking(places, self.options.limits.answer, work).await??)
    }

    /// What binds the server since somebody has asked before, if that was in the last minute, or else within a second
    /// from now. Who does not `wait` for that second gets no verdict then.
    async fn binds(&self, wait: bool) -> Result<(Sample, Option<Verdict>), Problem> {
        // Whoever asks meanwhile waits for this answer.
        let mut seen = self.binds.0.lock().await;
        let mut sample = self.sample(&self.work).await?;
        let age = |seen: &Seen, now: &Sample| now.at.saturating_duration_since(seen.sample.at);
        let before = match seen.take() {
            Some(one) if age(&one, &sample) < SHORT && (one.verdict.is_some() || !wait) => {
                let verdict = one.verdict.clone();
                *seen = Some(one);
                return Ok((sample, verdict));
            }
            Some(one) if (SHORT..=LONG).contains(&age(&one, &sample)) => one.sample,
            _ if !wait => {
                *seen = Some(Seen { sample: sample.clone(), verdict: None });
                return Ok((sample, None));
            }
            _ => {
                sleep(SHORT).await;
                std::mem::replace(&mut sample, self.sample(&self.work).await?)
            }
        };
        let verdict = lunet_verdict::between(&before, &sample);
        *seen = Some(Seen { sample: sample.clone(), verdict: verdict.clone() });
        Ok((sample, verdict))
    }
}

/// What binds the server and each volume.
pub(crate) async fn verdict(app: Arc<App>) -> Result<Verdict, Problem> {
    let (_, verdict) = app.binds(true).await?;
    verdict.ok_or_else(|| {
        Error::new(Code::NotAnswered, "the server has counted nothing yet").fix("try again").into()
    })
}

/// The metrics, in the format that is asked for.
pub(crate) async fn metrics(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    let by_initiator = call.flag("by_initiator")?;
    let format = Format::accepted(call.header(&header::ACCEPT)?.unwrap_or_default());
    let (sample, verdict) = app.binds(false).await?;
    let Answer::Volumes(volumes) = app.ask(&app.own(), Request::Volumes).await? else {
        return Err(Error::new(Code::Failed, "the server answers something else").into());
    };
    let Answer::Groups(groups) = app.ask(&app.own(), Request::Groups).await? else {
        return Err(Error::new(Code::Failed, "the server answers something else").into());
    };
    let findings = app.jobs.findings();
    let findings: Option<Vec<(&str, u64)>> =
        findings.as_ref().map(|all| all.iter().map(|(name, n)| (name.as_str(), *n)).collect());
    let text = render_as(
        &Snapshot {
            version: env!("CARGO_PKG_VERSION"),
            stats: &sample.stats,
            volumes: &volumes,
            groups: &groups,
            sessions: &sample.sessions,
            verdict: verdict.as_ref(),
            findings: findings.as_deref(),
            by_initiator,
        },
        format,
    );
    Ok(reply(StatusCode::OK, format.media_type(), text))
}
