// Loaded before MCP's conformance suite, which takes Node 22 for a command that is not run here.

import { register } from "node:module";

const fs = "data:text/javascript,export * from 'node:fs'; export const globSync = undefined;";
const hooks = `export const resolve = (name, context, next) =>
  name === "fs" ? { url: ${JSON.stringify(fs)}, shortCircuit: true } : next(name, context);`;
register(`data:text/javascript,${encodeURIComponent(hooks)}`);
