// A provider of OpenID Connect that others wrote: `node oidc.mjs PORT REDIRECT_URI`. It takes any login, and says so on standard output.
import Provider from "oidc-provider";

const [port, redirect] = process.argv.slice(2);
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{ client_id: "perdure", client_secret: "secret-of-the-test", redirect_uris: [redirect] }],
  claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["groups", "org"] },
  conformIdTokenClaims: false,
  cookies: { keys: ["a key of the test"] },
  findAccount: (_, id) => ({
    accountId: id,
    claims: async () => ({ sub: id, email: `${id}@example.com`, email_verified: true, groups: ["finance"], org: "acme" }),
  }),
});
provider.listen(Number(port), "127.0.0.1", () => console.log("listens"));
