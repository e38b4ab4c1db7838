/**
 * A table that becomes a list of cards on a narrow screen. Its roles are written out, because `display` takes those of the
 * elements away.
 */

import type { ComponentChildren } from "preact";
import { Fragment } from "preact";

export interface Column<T> {
  head: string;
  cell: (row: T) => ComponentChildren;
  /** Figures are aligned at the right. */
  figures?: boolean;
  /** It gives way where the table is too narrow for all columns; the row's own screen has it. */
  minor?: boolean;
  /** The column that names the row. */
  names?: boolean;
  /** The heading is for screen readers alone. */
  quietHead?: boolean;
}

interface TableProps<T> {
  label: string;
  rows: T[];
  columns: Column<T>[];
  rowKey: (row: T) => string;
  /** A row below a row, over all columns. */
  below?: (row: T) => ComponentChildren;
}

export function Table<T>({ label, rows, columns, rowKey, below }: TableProps<T>) {
  return (
    <table class="table" role="table" aria-label={label}>
      <thead role="rowgroup">
        <tr role="row">
          {columns.map((column) => (
            <th key={column.head} role="columnheader" scope="col" class={`${column.figures ? "figures" : ""} ${column.minor ? "minor" : ""}`}>
              <span class={column.quietHead ? "visually-hidden" : ""}>{column.head}</span>
            </th>
          ))}
        </tr>
      </thead>
      <tbody role="rowgroup">
        {rows.map((row) => {
          const more = below?.(row);
          return (
            <Fragment key={rowKey(row)}>
              <tr role="row">
                {columns.map((column) => {
                  const shown = column.cell(row);
                  const kind = `${column.figures ? "figures" : column.quietHead ? "actions-cell" : ""} ${column.minor ? "minor" : ""}`;
                  return column.names ? (
                    <th key={column.head} role="rowheader" scope="row" data-label={column.head} class={kind}>
                      {shown}
                    </th>
                  ) : (
                    <td key={column.head} role="cell" data-label={column.quietHead ? "" : column.head} class={kind}>
                      {shown}
                    </td>
                  );
                })}
              </tr>
              {more && (
                <tr role="row" class="below">
                  <td role="cell" colSpan={columns.length}>
                    {more}
                  </td>
                </tr>
              )}
            </Fragment>
          );
        })}
      </tbody>
    </table>
  );
}
