// Asks the site's own search worker, as its pages do: site_search.js SITE WORD ... prints JSON.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, ...words] = process.argv.slice(2);
const workers = path.join(site, "assets", "javascripts", "workers");
const worker = fs.readdirSync(workers).find((name) => /^search.*\.js$/.test(name));
const index = JSON.parse(fs.readFileSync(path.join(site, "search", "search_index.json")));

// The parts of a browser's worker that it uses.
let handle, answered;
Object.assign(global, {
  self: global,
  location: {},
  importScripts: () => {},
  addEventListener: (kind, listener) => { if (kind === "message") handle = listener; },
  postMessage: (message) => { if (message.type === 3) answered(message.data); },
});
vm.runInThisContext(fs.readFileSync(path.join(workers, worker), "utf8"));

async function main() {
  const found = {};
  await handle({ data: { type: 0, data: { ...index, options: { suggest: true } } } });
  for (const word of words) {
    const answer = new Promise((resolve) => { answered = resolve; });
    await handle({ data: { type: 2, data: word } });
    found[word] = (await answer).items.map((page) => page[0].location);
  }
  console.log(JSON.stringify(found));
}
main();
