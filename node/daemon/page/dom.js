// Helpers for the document. Text is only ever set as text, so what a peer sent is never markup.

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** A new element with a class and children (elements or strings). */
export function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

/** Set the text, unless it is the same already, so that selections and screen readers stay undisturbed. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set the class, unless it is the same already. */
export function setClass(node, className) {
  if (node.className !== className) node.className = className;
}

/** Give `parent` one child per item: `create()` makes a child, `update(child, item)` fills it. */
export function sync(parent, items, create, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  while (parent.children.length < items.length) parent.append(create());
  items.forEach((item, index) => update(parent.children[index], item));
}

/**
 * A table with a row per item.
 * A column is {title, text(item)}, and perhaps kind (classes), hint(item), shown on hover, isOdd(item), marked, and
 * share(item), of one: drawn as a bar, with the text beside it.
 */
export class Table {
  constructor(table, columns, caption) {
    this.columns = columns;
    const heads = columns.map(({ title, kind }) => {
      const head = make("th", (kind ?? "").replace("mono", ""), title);
      head.scope = "col";
      return head;
    });
    this.body = make("tbody");
    table.replaceChildren(...(caption ? [make("caption", "", caption)] : []), make("thead", "", make("tr", "", ...heads)), this.body);
  }

  update(items) {
    const row = () => make("tr", "", ...this.columns.map(({ share }) => make("td", "", ...(share ? bar() : []))));
    sync(this.body, items, row, (line, item) => {
      this.columns.forEach(({ text, kind, hint, isOdd, share }, index) => {
        const cell = line.children[index];
        const words = text(item);
        setText(share ? cell.lastElementChild : cell, words);
        if (share) cell.firstElementChild.value = share(item);
        setClass(cell, [kind, words === "–" ? "empty" : "", isOdd?.(item) ? "odd" : ""].filter(Boolean).join(" "));
        const title = hint?.(item) ?? "";
        if (cell.title !== title) cell.title = title;
      });
    });
  }
}

const bar = () => [make("progress", ""), make("span", "minor")];

/** A button that is no part of a form. */
export function button(label, onClick, className = "quiet") {
  const made = make("button", className, label);
  made.type = "button";
  made.addEventListener("click", onClick);
  return made;
}

/** Show those buttons whose row, [label, action, isOffered], says that it is offered now. */
export function offer(buttons, rows, state) {
  rows.forEach(([, , isOffered], index) => {
    const isHidden = !isOffered(state);
    if (buttons[index].hidden !== isHidden) buttons[index].hidden = isHidden;
  });
}

let fields = 0;

/** A control under its label, with a hint that screen readers read with it. */
export function field(label, control, hint) {
  control.id = `field-${++fields}`;
  const name = make("label", "", label);
  name.htmlFor = control.id;
  if (control.type === "checkbox") return make("div", "check", control, name);
  if (!hint) return make("div", "field", name, control);
  const words = make("p", "muted hint", hint);
  words.id = `${control.id}-hint`;
  control.setAttribute("aria-describedby", words.id);
  return make("div", "field", name, control, words);
}

/** A QR code as a picture: rows of modules, of which 1 is dark. */
export function qrCode(rows, label) {
  const picture = byId("qr-code").content.firstElementChild.cloneNode(true);
  const modules = rows.flatMap((row, y) => [...row].map((module, x) => (module === "1" ? `M${x} ${y}h1v1h-1z` : "")));
  picture.firstElementChild.setAttribute("d", modules.join(""));
  picture.setAttribute("viewBox", `0 0 ${rows.length} ${rows.length}`);
  picture.setAttribute("aria-label", label);
  return picture;
}
