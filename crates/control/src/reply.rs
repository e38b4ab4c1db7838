//! Answers over HTTP, and their bodies.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::Full;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, StatusCode};

/// An answer to a request.
pub(crate) type Response = hyper::Response<Body>;

/// The body of an answer.
pub(crate) enum Body {
    /// Bytes that are known when the answer begins.
    Whole(Full<Bytes>),
    /// Bytes as they come, sent in chunks.
    Stream(Stream),
}

impl Body {
    /// No bytes.
    pub(crate) fn empty() -> Self {
        Self::Whole(Full::default())
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(bytes: T) -> Self {
        Self::Whole(Full::new(bytes.into()))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Pin::new(bytes).poll_frame(context),
            Self::Stream(stream) => {
                stream.poll_next(context).map(|next| next.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_end_stream(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => bytes.size_hint(),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// Where the bytes of a [`Stream`] come from.
pub(crate) trait Source: Send + 'static {
    /// The next bytes, and the source of those after them; `None` ends the body.
    fn next(self) -> impl Future<Output = Option<(Bytes, Self)>> + Send
    where
        Self: Sized;
}

type Next = Pin<Box<dyn Future<Output = Option<(Bytes, Stream)>> + Send>>;

/// Bytes as they come. Nothing is read ahead: the source is asked when the client has taken what came before.
pub(crate) struct Stream(Option<Next>);

impl Stream {
    pub(crate) fn new(source: impl Source) -> Self {
        Self(Some(Box::pin(async {
            let (bytes, source) = source.next().await?;
            Some((bytes, Self::new(source)))
        })))
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(next) = &mut self.0 else { return Poll::Ready(None) };
        let Poll::Ready(next) = next.as_mut().poll(context) else { return Poll::Pending };
        // The old future is dropped: it must not be polled again.
        let (bytes, rest) = next.map_or((None, None), |(bytes, rest)| (Some(bytes), rest.0));
        self.0 = rest;
        Poll::Ready(bytes)
    }
}

/// An answer with a body of this media type.
pub(crate) fn reply(status: StatusCode, media: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

/// An answer with these headers.
pub(crate) fn with_headers(status: StatusCode, headers: HeaderMap, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    response
}

/// Sets Content-Length if the length is known, and leaves out the body if only the head is wanted (RFC 9110, 9.3.2).
pub(crate) fn finish(response: &mut Response, head_only: bool) {
    if let Some(length) = response.body().size_hint().exact() {
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if head_only {
        *response.body_mut() = Body::empty();
    }
}
