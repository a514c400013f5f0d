// An S3 server on a folder: s3rver with the credentials, port and health check of versitygw.
const S3rver = require('s3rver');
const AWSAccount = require('s3rver/lib/models/account');

const account = new AWSAccount(1, 'assay');
account.createKeyPair(process.env.ROOT_ACCESS_KEY, process.env.ROOT_SECRET_KEY);
const server = new S3rver({
  address: '0.0.0.0',
  port: Number(process.env.VGW_PORT.replace(':', '')),
  directory: '/data',
  silent: true,
  vhostBuckets: false, // a host's name without dots would be taken for a bucket
});
server.middleware.unshift(async (context, next) => {
  if (context.path === '/health') context.body = 'ok';
  else await next();
});
server.run();
for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => process.exit(0));
