//! The schemas of bodies and answers. Only the test that checks the OpenAPI document builds them: elsewhere, all that a
//! route says is that there is a body.

pub(crate) use shapes::*;

#[cfg(not(test))]
mod shapes {
    /// A body or an answer.
    pub(crate) type Shape = fn();

    pub(crate) fn one<T>() {}

    pub(crate) fn many<T>() {}

    pub(crate) fn any() {}

    pub(crate) fn text() {}
}

#[cfg(test)]
mod shapes {
    use utoipa::ToSchema;
    use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Schema, Type};
    use utoipa::openapi::{Ref, RefOr};

    /// The schemas of the document, by name.
    pub(crate) type Shapes = Vec<(String, RefOr<Schema>)>;

    /// Gives the schema of a body or an answer, and adds what it refers to.
    pub(crate) type Shape = fn(&mut Shapes) -> RefOr<Schema>;

    /// The schema of a type.
    pub(crate) fn one<T: ToSchema>(shapes: &mut Shapes) -> RefOr<Schema> {
        T::schemas(shapes);
        shapes.push((T::name().into_owned(), T::schema()));
        RefOr::Ref(Ref::from_schema_name(T::name()))
    }

    /// The schema of a list.
    pub(crate) fn many<T: ToSchema>(shapes: &mut Shapes) -> RefOr<Schema> {
        let item = one::<T>(shapes);
        RefOr::T(Schema::Array(ArrayBuilder::new().items(item).build()))
    }

    /// The schema of an object that others describe.
    pub(crate) fn any(_: &mut Shapes) -> RefOr<Schema> {
        RefOr::T(Schema::Object(ObjectBuilder::new().build()))
    }

    /// The schema of a text.
    pub(crate) fn text(_: &mut Shapes) -> RefOr<Schema> {
        RefOr::T(Schema::Object(ObjectBuilder::new().schema_type(Type::String).build()))
    }
}
