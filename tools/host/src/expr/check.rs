//! Looks through an expression for names that are not there.

use std::sync::Arc;

use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, SelectExpr, operators};
use cel::common::value::CelVal;

use super::Shape;

/// Why an expression can never have a value, on no machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// It names a fact that no machine has.
    #[error("there is no fact `{0}`")]
    NoSuchFact(String),
    /// It names a variable that is not there.
    #[error("there is no `{0}` here")]
    NoSuchVariable(String),
    /// It ranges over something that is neither a list nor a map.
    #[error("`{0}` is no list to range over")]
    NoList(String),
    /// It uses a part of the language that is not supported.
    #[error("messages and types are not supported here")]
    Unsupported,
}

/// What the expression gives, if every name in it is there.
pub(super) fn check(expr: &IdedExpr, names: &Shape) -> Result<Shape, CheckError> {
    match &expr.expr {
        Expr::Ident(name) => match names {
            Shape::Fields(fields) => {
                fields.get(name).cloned().ok_or_else(|| CheckError::NoSuchVariable(name.clone()))
            }
            _ => Ok(Shape::Plain),
        },
        Expr::Select(select) => select_(select, names),
        Expr::Call(call) => call_(call, names),
        Expr::Comprehension(over) => comprehension(over, names),
        Expr::List(list) => {
            let mut shapes = Vec::new();
            for element in &list.elements {
                shapes.push(check(element, names)?);
            }
            Ok(Shape::list(shapes.into_iter().next().unwrap_or(Shape::Plain)))
        }
        Expr::Map(map) => {
            for entry in &map.entries {
                let EntryExpr::MapEntry(entry) = &entry.expr else {
                    return Err(CheckError::Unsupported);
                };
                check(&entry.key, names)?;
                check(&entry.value, names)?;
            }
            Ok(Shape::Map(Arc::new(Shape::Plain)))
        }
        Expr::Literal(_) => Ok(Shape::Plain),
        Expr::Struct(_) | Expr::Unspecified => Err(CheckError::Unsupported),
    }
}

fn select_(select: &SelectExpr, names: &Shape) -> Result<Shape, CheckError> {
    match field(&check(&select.operand, names)?, &select.field) {
        Some(_) if select.test => Ok(Shape::Plain),
        Some(shape) => Ok(shape),
        None => {
            let path = format!("{}.{}", path(&select.operand).unwrap_or_default(), select.field);
            Err(CheckError::NoSuchFact(path))
        }
    }
}

fn field(shape: &Shape, name: &str) -> Option<Shape> {
    match shape {
        Shape::Fields(fields) => fields.get(name).cloned(),
        Shape::Map(any) => Some((**any).clone()),
        Shape::Plain | Shape::List(_) => None,
    }
}

fn call_(call: &CallExpr, names: &Shape) -> Result<Shape, CheckError> {
    if let Some(target) = &call.target {
        check(target, names)?;
    }
    let mut shapes = Vec::new();
    for arg in &call.args {
        shapes.push(check(arg, names)?);
    }
    match call.func_name.as_str() {
        operators::INDEX => match (shapes.swap_remove(0), &call.args[1].expr) {
            (Shape::List(element), _) => Ok((*element).clone()),
            (shape, Expr::Literal(CelVal::String(name))) => field(&shape, name).ok_or_else(|| {
                let path = path(&call.args[0]).unwrap_or_default();
                CheckError::NoSuchFact(format!("{path}[\"{name}\"]"))
            }),
            (Shape::Map(any), _) => Ok((*any).clone()),
            _ => Ok(Shape::Plain),
        },
        operators::CONDITIONAL | operators::ADD => Ok(shapes.swap_remove(1)),
        "or" | "unique" | "sort" if !shapes.is_empty() => Ok(shapes.swap_remove(0)),
        "flatten" if !shapes.is_empty() => Ok(match shapes.swap_remove(0) {
            Shape::List(inner) => (*inner).clone(),
            other => other,
        }),
        _ => Ok(Shape::Plain),
    }
}

fn comprehension(over: &ComprehensionExpr, names: &Shape) -> Result<Shape, CheckError> {
    let element = match check(&over.iter_range, names)? {
        Shape::List(element) => (*element).clone(),
        Shape::Map(_) => Shape::Plain,
        Shape::Fields(_) | Shape::Plain => {
            let path = path(&over.iter_range).unwrap_or_default();
            return Err(CheckError::NoList(path));
        }
    };
    // What the list that is built up has in it is seen where it grows: accu + [element].
    let inner = names.clone().with(&over.iter_var, element);
    let start = check(&over.accu_init, names)?;
    let inner = inner.with(&over.accu_var, start);
    check(&over.loop_cond, &inner)?;
    let step = check(grown(&over.loop_step), &inner)?;
    let inner = inner.with(&over.accu_var, step);
    check(&over.loop_step, &inner)?;
    check(&over.result, &inner)
}

/// Of `condition ? accu + [element] : accu`, the part where something is added.
fn grown(step: &IdedExpr) -> &IdedExpr {
    match &step.expr {
        Expr::Call(call) if call.func_name == operators::CONDITIONAL => &call.args[1],
        _ => step,
    }
}

/// The path as it would be written, if it is one.
pub(super) fn path(expr: &IdedExpr) -> Option<String> {
    match &expr.expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(select) => Some(format!("{}.{}", path(&select.operand)?, select.field)),
        Expr::Call(call) if call.func_name == operators::INDEX => match &call.args[1].expr {
            Expr::Literal(CelVal::String(name)) => {
                Some(format!("{}[\"{name}\"]", path(&call.args[0])?))
            }
            Expr::Literal(CelVal::Int(index)) => Some(format!("{}[{index}]", path(&call.args[0])?)),
            _ => None,
        },
        _ => None,
    }
}

/// The longest paths of facts in the expression, those inside of ranges left out.
pub(super) fn paths<'a>(expr: &'a IdedExpr, out: &mut Vec<&'a IdedExpr>) {
    if path(expr).is_some() {
        out.push(expr);
        return;
    }
    match &expr.expr {
        Expr::Select(select) => paths(&select.operand, out),
        Expr::Call(call) => {
            call.target.iter().for_each(|target| paths(target, out));
            call.args.iter().for_each(|arg| paths(arg, out));
        }
        Expr::Comprehension(over) => paths(&over.iter_range, out),
        Expr::List(list) => list.elements.iter().for_each(|element| paths(element, out)),
        _ => {}
    }
}
