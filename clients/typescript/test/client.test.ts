/** Against a running service: UNSKEW_ADDRESS, UNSKEW_TOKEN (the one for writing) and UNSKEW_READ. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { UnskewClient, UnskewError } from "../src/client.js";

const address = process.env["UNSKEW_ADDRESS"] ?? assert.fail("UNSKEW_ADDRESS is not set");
const client = new UnskewClient(`${address}/`, { token: process.env["UNSKEW_TOKEN"] });

test("a list is recorded, answered and counted", async () => {
  const list = await client.recommend({ user_id: "typed", k: 3 });
  assert.equal(list.items.length, 3);
  assert.ok(list.recommendation_id);
  const [best] = list.items;
  assert.ok(best);
  const event = { event_id: "ts-1", user_id: "typed", item_id: best.item_id, type: "click" };
  const answered = await client.append([{ ...event, recommendation_id: list.recommendation_id }]);
  assert.deepEqual([answered.accepted, answered.duplicates, answered.rejected], [1, 0, []]);
  const user = await client.user("typed");
  assert.equal(user.newest[0]?.item_id, best.item_id);
  const next = await client.recommend({ user_id: "typed", k: 3, include_seen: false });
  assert.ok(!next.items.some((item) => item.item_id === best.item_id));
});

test("a history needs no user, and is not recorded", async () => {
  const list = await client.recommend({ history: ["i1", { item_id: "i2", timestamp: 1_700_000_000 }], k: 2 });
  assert.equal(list.recommendation_id, null);
});

test("items are stored, found and read, whatever their id", async () => {
  const id = "50%/a?b#c é";
  const stored = await client.putItems([{ item_id: id, title: "A blue lamp", features: { in_stock: true } }]);
  assert.deepEqual(stored.rejected, []);
  assert.equal((await client.item(id)).title, "A blue lamp");
  assert.ok((await client.items({ query: "blue lamp", limit: 5 })).items.some((item) => item.item_id === id));
});

test("an event that is wrong is named", async () => {
  const { rejected } = await client.append([{ event_id: "x", user_id: "u", item_id: "i1", type: "nonsense" }]);
  assert.deepEqual(rejected.map((one) => [one.index, one.field]), [[0, "type"]]);
});

test("what is refused is an error with its field", async () => {
  await assert.rejects(client.recommend({ user_id: "typed", k: 0 }), (error: unknown) => {
    assert.ok(error instanceof UnskewError);
    assert.deepEqual([error.status, error.field], [422, "k"]);
    assert.ok(error.requestId);
    return true;
  });
  const reader = new UnskewClient(address, { token: process.env["UNSKEW_READ"] });
  await assert.rejects(reader.append([]), { name: "UnskewError", status: 403 });
  await assert.rejects(new UnskewClient(address).model(), { status: 401 });
});

test("the model, its monitor and its reload", async () => {
  assert.equal((await client.model()).model, "itemknn");
  assert.ok(Array.isArray((await client.monitor())["windows"]));
  assert.equal((await client.reload(20)).state, "done");
});

test("an erased user is not there", async () => {
  assert.equal((await client.erase("typed")).was_known, true);
  await assert.rejects(client.user("typed"), { status: 404, field: "user_id" });
});
