//! What an expression ranges over, always in the same order.
//!
//! The interpreter goes through a map as its hash table happens to lie, which differs from run to run, and it panics where it
//! is to range over what is no list. So each range of an expression is put through a function that makes a list of it.

use std::sync::Arc;

use cel::common::ast::{CallExpr, EntryExpr, Expr};
use cel::objects::Key;
use cel::{ExecutionError, IdedExpr, Value};

use super::functions::UNKNOWN;

/// The function. No expression can name it.
pub(super) const RANGE: &str = "@range";

/// Puts each range in the expression through [`RANGE`].
pub(super) fn in_order(expr: &mut IdedExpr) {
    match &mut expr.expr {
        Expr::Comprehension(over) => {
            for part in [
                &mut over.iter_range,
                &mut over.accu_init,
                &mut over.loop_cond,
                &mut over.loop_step,
                &mut over.result,
            ] {
                in_order(part);
            }
            let range = std::mem::take(&mut over.iter_range);
            let (id, args) = (range.id, vec![range]);
            let call = CallExpr { func_name: RANGE.to_owned(), target: None, args };
            over.iter_range = IdedExpr { id, expr: Expr::Call(call) };
        }
        Expr::Select(select) => in_order(&mut select.operand),
        Expr::Call(call) => {
            call.target.iter_mut().for_each(|target| in_order(target));
            call.args.iter_mut().for_each(in_order);
        }
        Expr::List(list) => list.elements.iter_mut().for_each(in_order),
        Expr::Map(map) => map.entries.iter_mut().for_each(|entry| {
            if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                in_order(&mut entry.key);
                in_order(&mut entry.value);
            }
        }),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => {}
    }
}

/// A list as it is; the names of a map, sorted.
pub(super) fn range(over: Value) -> Result<Value, ExecutionError> {
    match over {
        Value::List(_) => Ok(over),
        Value::Map(map) => {
            let mut names: Vec<&Key> = map.map.keys().collect();
            names.sort();
            let names: Vec<Value> = names.into_iter().map(|name| name.clone().into()).collect();
            Ok(Value::List(Arc::new(names)))
        }
        Value::Null => Err(ExecutionError::function_error("range", UNKNOWN)),
        other => Err(ExecutionError::function_error(
            "range",
            format!("a {} is no list to range over", other.type_of()),
        )),
    }
}
