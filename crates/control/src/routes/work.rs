//! Jobs.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{self, HeaderValue};

use super::{Needs, Route, Run, Verb, get, many, one, route};
use crate::app::{App, Call, Outcome, json};
use crate::jobs::{Job, Jobs, NewJob};
use crate::problem::Problem;
use crate::reply::Response;
use crate::service::Role;

async fn begin(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    let new: NewJob = call.json()?;
    let needed = new.kind.role();
    if !call.who.role.may(needed) {
        let text = format!("{} needs the role {}", new.kind.as_str(), needed.as_str());
        return Err(Problem::forbidden(text));
    }
    let id = app.jobs.reserve();
    // What only looks at the machine is no change.
    if needed != Role::Viewer {
        app.notifier.keeps_up()?;
        app.noted(&call, new.kind.as_str(), &format!("job {id} begins")).await?;
    }
    let begun = Jobs::begin(&app, &call.who, (id, &new));
    if let (Err(problem), true) = (&begun, needed != Role::Viewer) {
        let outcome = Outcome::Refused(problem.error.to_string());
        app.record(&call, call.who.told(), new.kind.as_str().to_owned(), &outcome);
    }
    let job = begun?;
    let mut response = json(StatusCode::ACCEPTED, &job);
    if let Ok(place) = HeaderValue::from_str(&format!("/api/v1/jobs/{}", job.id)) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

fn cancel(app: &App, call: &Call) -> Result<Response, Problem> {
    let job = app.jobs.cancel(&call.who, call.part("id"))?;
    if job.kind.role() != Role::Viewer {
        let outcome =
            Outcome::Done(format!("job {} ({}) is told to end", job.id, job.kind.as_str()));
        app.record(call, call.who.told(), "cancel-job".to_owned(), &outcome);
    }
    Ok(json(StatusCode::OK, &job))
}

pub(super) const ROUTES: &[Route] = &[
    route(
        Verb::Post,
        "/api/v1/jobs",
        Needs::Role(Role::Viewer),
        "Begins a job: doctor, tune-plan and tune-verify; with the role administrator also tune-apply, tune-rollback, tune-prove and \
         bench",
        Run::Own(|app, call| Box::pin(begin(app, call))),
    )
    .body(one::<NewJob>)
    .answer(one::<Job>)
    .accepted()
    .once(),
    get("/api/v1/jobs", "The jobs, the latest first", many::<Job>, Run::Own(|app, _| {
        Box::pin(async move { Ok(json(StatusCode::OK, &app.jobs.list())) })
    })),
    get("/api/v1/jobs/{id}", "A job", one::<Job>, Run::Own(|app, call| {
        Box::pin(async move { Ok(json(StatusCode::OK, &app.jobs.find(call.part("id"))?)) })
    })),
    route(
        Verb::Delete,
        "/api/v1/jobs/{id}",
        Needs::Role(Role::Viewer),
        "Cancels a job: one's own, or with the role administrator any",
        Run::Own(|app, call| Box::pin(async move { cancel(&app, &call) })),
    )
    .answer(one::<Job>)
    .once(),
];
