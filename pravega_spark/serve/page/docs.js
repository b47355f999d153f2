// The OpenAPI document as a page: operations by tag, their parameters, answers, and a try.

import { h, table } from "./dom.js";
import { printable, printableLines } from "./format.js";
import { get } from "./server.js";

const VERBS = ["get", "post", "put", "delete"];

/** A text of the document, whose code stands between pairs of backticks. */
const marked = (text) => text.split("``").map((part, at) => (at % 2 ? h("code", {}, part) : part));

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeOf).filter((text) => text !== "null").join(" or ");
  if (schema.type === "array") return `${typeOf(schema.items)}[]`;
  if (schema.enum) return schema.enum.join(" | ");
  return schema.type || "any";
}

function fields(schema, known) {
  const found = known[typeOf(schema).replace("[]", "")];
  if (!found?.properties) return h("p", {}, h("code", {}, typeOf(schema) || "no body"));
  return h("div", {}, h("p", {}, h("code", {}, typeOf(schema))),
    table(["Field", "Type", "Meaning"], Object.entries(found.properties).map(([name, field]) =>
      [h("code", {}, name), h("code", {}, typeOf(field)), marked((field.description || "").replaceAll("\n", " "))])));
}

function tryIt(path, parameters) {
  const inputs = parameters.map((given) => h("input", { "aria-label": given.name, placeholder: given.name, name: given.name, required: given.required }));
  const answer = h("pre", { class: "mono", "aria-live": "polite" });
  async function send(event) {
    event.preventDefault();
    let address = path;
    const query = {};
    parameters.forEach((given, at) => {
      if (given.in === "path") address = address.replace(`{${given.name}}`, encodeURIComponent(inputs[at].value));
      else query[given.name] = inputs[at].value;
    });
    try {
      answer.textContent = printableLines(JSON.stringify(await get(address, query), null, 2).slice(0, 20000));
    } catch (error) {
      answer.textContent = printable(error.message);
    }
  }
  return h("form", { class: "try", onsubmit: send }, inputs, h("button", {}, "Try"), answer);
}

function operation(path, verb, found, known) {
  const answers = Object.entries(found.responses);
  const body = found.requestBody?.content?.["application/json"]?.schema;
  const success = answers.find(([status]) => status.startsWith("2"))?.[1]?.content?.["application/json"]?.schema;
  const parameters = found.parameters || [];
  return h("details", { class: "card operation", id: found.operationId },
    h("summary", {}, h("code", { class: `verb ${verb}` }, verb.toUpperCase()), " ", h("code", {}, path), " ",
      h("span", { class: "muted" }, marked((found.description || found.summary || "").split("\n")[0]))),
    found.description?.includes("\n") && h("p", {}, marked(found.description.split("\n").slice(1).join(" ").trim())),
    parameters.length > 0 && table(["Parameter", "In", "Type", "Default"], parameters.map((given) =>
      [h("code", {}, given.name), given.in, h("code", {}, typeOf(given.schema)), given.required ? "required" : String(given.schema.default ?? "")])),
    body && [h("h2", {}, "Body"), fields(body, known)],
    success && [h("h2", {}, "Answer"), fields(success, known)],
    h("p", { class: "small muted" }, "Statuses: ", answers.map(([status, answer]) => `${status} ${answer.description.replaceAll("\n", " ")}`).join(" · ")),
    verb === "get" && path !== "/api/live" && tryIt(path, parameters));
}

function page(found) {
  const known = found.components.schemas;
  const tags = new Map();
  for (const [path, verbs] of Object.entries(found.paths))
    for (const verb of VERBS.filter((name) => verbs[name])) {
      const tag = verbs[verb].tags?.[0] || "Other";
      if (!tags.has(tag)) tags.set(tag, []);
      tags.get(tag).push(operation(path, verb, verbs[verb], known));
    }
  return [h("p", { class: "muted" }, found.info.description.replaceAll("`", "").replaceAll("\n", " ")),
    ...[...tags].map(([tag, operations]) => h("section", { "aria-label": tag, class: "operations" }, h("h2", {}, tag), operations))];
}

export function docsView() {
  const body = h("div", { class: "loading" }, "…");

  async function load() {
    try {
      body.replaceChildren(...page(await get("/api/openapi.json")));
      const wanted = location.hash && document.getElementById(location.hash.slice(1));
      if (wanted) { wanted.setAttribute("open", ""); wanted.scrollIntoView(); }
    } catch (error) {
      body.replaceChildren(h("p", { class: "problem" }, error.message));
    }
    body.className = "";
  }

  return {
    title: "API",
    element: h("div", {}, h("div", { class: "head" }, h("h1", {}, "REST API"), h("a", { href: "/api/openapi.json" }, "openapi.json")), body),
    begin: load,
  };
}
