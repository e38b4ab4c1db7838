//! Makes the OpenAPI document of the table of routes and of the types' own schemas.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::Formatter;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{AnyOfBuilder, Schema, Type};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, ObjectBuilder, OpenApi, OpenApiBuilder,
    PathItem, PathsBuilder, RefOr, Required, ResponseBuilder,
};
use utoipa::{PartialSchema, ToSchema};

use crate::app::JSON;
use crate::problem;
use crate::routes::{DRY_RUN, Needs, Of, Parameter, Route, Run, TABLE, Tagged, Verb};
use crate::shape::Shapes;

const BEARER: &str = "token";
const SESSION: &str = "session";

const ABOUT: &str = "The REST interface of lunet. Changes with a session need the header X-Lunet-CSRF with the value that \
    the login has given; changes with a token do not. docs/rest.md describes it.";

/// Begins a line at each member of an object, and changes nothing else.
struct Lines;

impl Formatter for Lines {
    fn begin_object_key<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"\n" } else { b",\n" })
    }
}

/// The document in lines.
pub(super) fn in_lines(version: &str, cookie: &str) -> String {
    let mut text = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, Lines);
    document(version, cookie).serialize(&mut serializer).unwrap();
    text.push(b'\n');
    String::from_utf8(text).unwrap()
}

/// The document without line breaks.
pub(super) fn compact(version: &str, cookie: &str) -> String {
    document(version, cookie).to_json().unwrap()
}

/// The document. `cookie` is the name of the session's.
fn document(version: &str, cookie: &str) -> OpenApi {
    let mut shapes: Shapes = Vec::new();
    problem::Body::schemas(&mut shapes);
    shapes.push((problem::Body::name().into_owned(), problem::Body::schema()));
    let mut paths = PathsBuilder::new();
    for route in TABLE {
        let method = match route.method {
            Verb::Get => HttpMethod::Get,
            Verb::Post => HttpMethod::Post,
            Verb::Put => HttpMethod::Put,
            Verb::Patch => HttpMethod::Patch,
            Verb::Delete => HttpMethod::Delete,
        };
        paths = paths.path(route.path, PathItem::new(method, operation(route, &mut shapes)));
    }
    shapes.sort_by(|a, b| a.0.cmp(&b.0));
    shapes.dedup_by(|a, b| a.0 == b.0);
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    let cookie = ApiKey::Cookie(ApiKeyValue::new(cookie));
    let components = ComponentsBuilder::new()
        .schemas_from_iter(shapes)
        .security_scheme(BEARER, SecurityScheme::Http(bearer))
        .security_scheme(SESSION, SecurityScheme::ApiKey(cookie));
    let info = InfoBuilder::new().title("lunet").version(version).description(Some(ABOUT)).build();
    let document =
        OpenApiBuilder::new().info(info).paths(paths).components(Some(components.build()));
    document.build()
}

fn operation(route: &Route, shapes: &mut Shapes) -> utoipa::openapi::path::Operation {
    let about = match route.needs {
        Needs::Nobody => "For everybody.".to_owned(),
        Needs::Role(role) => format!("Role: {}.", role.as_str()),
    };
    let mut operation = OperationBuilder::new()
        .summary(Some(route.about))
        .description(Some(about))
        .operation_id(Some(name_of(route)))
        .tag(route.path.trim_start_matches("/api/v1/").split('/').next().unwrap_or_default());
    for part in route.path.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
        let schema = match part {
            "lun" | "tsih" => whole(u32::from(u16::MAX)),
            _ => name(),
        };
        let parameter = ParameterBuilder::new()
            .name(part)
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .schema(Some(schema));
        operation = operation.parameter(parameter);
    }
    let dry = matches!(route.run, Run::Change(_)).then_some(DRY_RUN);
    for (name, kind, about) in route.query.iter().copied().chain(dry) {
        operation = operation.parameter(in_query((name, kind, about)));
    }
    if route.once {
        let about = "The same key, with the same request, gives the first answer again";
        operation = operation.parameter(in_header("Idempotency-Key", about, key()));
    }
    if matches!(route.tagged, Tagged::By(..)) && route.changes() {
        let about = "The ETag that it must still have";
        let header = in_header("If-Match", about, simple(Of::Text));
        let needed = if route.needs_match { Required::True } else { Required::False };
        operation = operation.parameter(header.required(needed));
    }
    if let Some(shape) = route.body {
        let content = ContentBuilder::new().schema(Some(shape(shapes))).build();
        let body = RequestBodyBuilder::new().content(JSON, content).required(Some(Required::True));
        operation = operation.request_body(Some(body.build()));
    }
    for (status, schema, about) in answers(route, shapes) {
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let mut response = ResponseBuilder::new().description(about);
        for media in route.media {
            response = response.content(*media, content.clone());
        }
        operation = operation.response(status, response.build());
    }
    let problem = utoipa::openapi::Ref::from_schema_name(problem::Body::name());
    let content = ContentBuilder::new().schema(Some(problem)).build();
    let refused = ResponseBuilder::new().description("Refused").content(problem::MEDIA, content);
    operation = operation.response("default", refused.build());
    if let Needs::Role(_) = route.needs {
        let scopes: [&str; 0] = [];
        operation = operation
            .security(SecurityRequirement::new(BEARER, scopes))
            .security(SecurityRequirement::new(SESSION, scopes));
    }
    operation.build()
}

/// `patchVolumesName` for PATCH /api/v1/volumes/{name}.
fn name_of(route: &Route) -> String {
    let words = route.path.trim_start_matches("/api/v1").split(|c: char| !c.is_alphanumeric());
    let mut out = route.method.as_str().to_lowercase();
    for word in words {
        let mut letters = word.chars();
        out.extend(letters.next().map(|c| c.to_ascii_uppercase()));
        out.extend(letters);
    }
    out
}

/// The answers of success.
fn answers(route: &Route, shapes: &mut Shapes) -> Vec<(String, RefOr<Schema>, &'static str)> {
    let Some(shape) = route.answer else { return Vec::new() };
    let (status, done) = (route.status().as_u16().to_string(), shape(shapes));
    if route.path == "/readyz" {
        return vec![
            (status, done.clone(), "It serves"),
            ("503".to_owned(), done, "It does not serve"),
        ];
    }
    if !matches!(route.run, Run::Change(_)) {
        return vec![(status, done, "Done")];
    }
    lunet_api::Preview::schemas(shapes);
    shapes.push((lunet_api::Preview::name().into_owned(), lunet_api::Preview::schema()));
    let preview = utoipa::openapi::Ref::from_schema_name(lunet_api::Preview::name());
    let preview = RefOr::Ref(preview);
    match status.as_str() {
        "200" => {
            let either = AnyOfBuilder::new().item(done).item(preview);
            let either = RefOr::T(Schema::AnyOf(either.build()));
            vec![(status, either, "Done, or with dry_run what would happen")]
        }
        _ => vec![
            (status, done, "Done"),
            ("200".to_owned(), preview, "With dry_run: what would happen"),
        ],
    }
}

fn simple(kind: Of) -> RefOr<Schema> {
    let object = ObjectBuilder::new();
    let object = match kind {
        Of::Flag => object.schema_type(Type::Boolean),
        Of::Number => object.schema_type(Type::Integer).minimum(Some(0)),
        Of::Text => object.schema_type(Type::String),
    };
    RefOr::T(Schema::Object(object.build()))
}

/// A name in a path: without control characters.
fn name() -> RefOr<Schema> {
    let object = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1));
    let pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$";
    RefOr::T(Schema::Object(object.pattern(Some(pattern)).build()))
}

/// A whole number from 0 on.
fn whole(most: u32) -> RefOr<Schema> {
    let object = ObjectBuilder::new().schema_type(Type::Integer);
    RefOr::T(Schema::Object(object.minimum(Some(0)).maximum(Some(most)).build()))
}

/// The form of an Idempotency-Key.
fn key() -> RefOr<Schema> {
    let object = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[ -~]+$"));
    RefOr::T(Schema::Object(object.min_length(Some(1)).max_length(Some(128)).build()))
}

fn in_query((name, kind, about): Parameter) -> ParameterBuilder {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Query)
        .required(Required::False)
        .description(Some(about))
        .schema(Some(simple(kind)))
}

fn in_header(name: &str, about: &str, schema: RefOr<Schema>) -> ParameterBuilder {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(about))
        .schema(Some(schema))
}
