"use strict";
// Shows openapi.json, which is made from the table that also routes and checks requests.

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function kindOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.type === "array") return `list of ${kindOf(schema.items) || "anything"}`;
  if (schema.anyOf) return schema.anyOf.map(kindOf).join(" or ");
  return [].concat(schema.type || "anything").join(" or ");
}

function fieldsOf(schema, components) {
  const found = schema && schema.$ref ? components.schemas[schema.$ref.split("/").pop()] : schema;
  if (found && found.anyOf) return found.anyOf.flatMap((each) => fieldsOf(each, components));
  return Object.entries((found && found.properties) || {}).map(([name, each]) => [
    name, kindOf(each), ((found.required || []).includes(name) ? "needed. " : "") + (each.description || ""),
  ]);
}

function table(heads, rows) {
  return element("div", { className: "wide", tabIndex: 0 }, element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((each) => element("th", { textContent: each, scope: "col" })))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((each) => element("td", { textContent: each })))))));
}

function curl(method, path, operation) {
  const needed = (operation.parameters || []).filter((each) => each.in === "query" && each.required);
  const query = needed.length ? "?" + needed.map((each) => `${each.name}=...`).join("&") : "";
  const kinds = Object.keys((operation.requestBody || {}).content || {});
  const body = kinds.length ? ` -H 'content-type: ${kinds[0]}' --data-binary @-` : "";
  const stream = Object.values(operation.responses).some((each) => each.content && each.content["text/event-stream"]);
  return `curl${stream ? " -N" : ""}${method === "GET" ? "" : ` -X ${method}`}${body} '${location.origin}${path}${query}'`;
}

function operation(method, path, each, components) {
  const part = element("details", {}, element("summary", {}, element("code", { textContent: `${method} ${path}` }), ` ${each.summary}`));
  part.append(element("p", { textContent: each.description }), element("pre", {}, element("code", { textContent: curl(method, path, each) })));
  const rows = (each.parameters || []).map((one) => [one.name, `${one.in}${one.required ? ", needed" : ""}`, kindOf(one.schema), one.description]);
  if (rows.length) part.append(table(["Parameter", "In", "Kind", ""], rows));
  for (const [kind, content] of Object.entries((each.requestBody || {}).content || {})) {
    part.append(element("p", {}, "Body: ", element("code", { textContent: kind }), ` ${kindOf(content.schema)}`));
    const fields = fieldsOf(content.schema, components);
    if (fields.length) part.append(table(["Field", "Kind", ""], fields));
  }
  for (const [status, answer] of Object.entries(each.responses)) {
    if (status === "default") continue;
    const kinds = Object.entries(answer.content || {}).map(([kind, content]) => `${kind} ${kindOf(content.schema)}`).join("; ");
    part.append(element("p", { textContent: `${status}: ${answer.description} ${kinds}` }));
  }
  part.dataset.words = `${method} ${path} ${each.description}`.toLowerCase();
  return part;
}

async function begin() {
  const found = await (await fetch("/openapi.json")).json();
  const groups = new Map();
  for (const [path, methods] of Object.entries(found.paths)) {
    for (const [method, each] of Object.entries(methods)) {
      const group = each.tags[0];
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(operation(method.toUpperCase(), path, each, found.components));
    }
  }
  for (const [name, parts] of groups) {
    document.getElementById("operations").append(element("section", {}, element("h2", { textContent: name }), ...parts));
  }
  document.getElementById("filter").addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase();
    for (const part of document.querySelectorAll("#operations details")) part.hidden = !part.dataset.words.includes(wanted);
    for (const group of document.querySelectorAll("#operations section")) group.hidden = !group.querySelector("details:not([hidden])");
  });
}
begin();
